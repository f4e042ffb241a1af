"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("matched", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("cpu_s", sa.Float(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.Column("suspended_s", sa.Float(), nullable=False),
        sa.Column("peak_memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("reported", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_attempts")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(
            "ix_attempts_unreported",
            ["pilot_stamp"],
            unique=False,
            sqlite_where=sa.text("NOT reported"),
            postgresql_where=sa.text("NOT reported"),
        )

    op.create_table(
        "bans",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bans")),
    )
    op.create_table(
        "input_files",
        sa.Column(
            "template_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("template_id", "name", name=op.f("pk_input_files")),
    )
    with op.batch_alter_table("input_files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_input_files_checksum"), ["checksum"], unique=False)

    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("from_state", sa.String(), nullable=False),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("job_events", schema=None) as batch_op:
        batch_op.create_index("ix_job_events_job_id_id", ["job_id", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_events_time"), ["time"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("template_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cluster", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("task_queue_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("spent_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_s", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("submitted", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_ended", ["ended"], unique=False)
        batch_op.create_index(
            "ix_jobs_held",
            ["id"],
            unique=False,
            sqlite_where=sa.text("state = 'HELD'"),
            postgresql_where=sa.text("state = 'HELD'"),
        )
        batch_op.create_index(
            "ix_jobs_leased",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"),
            postgresql_where=sa.text("state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"),
        )
        batch_op.create_index(
            "ix_jobs_lingering",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("state IN ('WAITING', 'HELD', 'REMOVED') AND lease_until IS NOT NULL"),
            postgresql_where=sa.text("state IN ('WAITING', 'HELD', 'REMOVED') AND lease_until IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_jobs_live",
            ["pool_id", "task_queue_id"],
            unique=False,
            sqlite_where=sa.text("state NOT IN ('DONE', 'FAILED', 'REMOVED')"),
            postgresql_where=sa.text("state NOT IN ('DONE', 'FAILED', 'REMOVED')"),
        )
        batch_op.create_index("ix_jobs_owner_id", ["owner", "id"], unique=False)
        batch_op.create_index("ix_jobs_pilot_stamp", ["pilot_stamp"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_template_id"), ["template_id"], unique=False)
        batch_op.create_index(
            "ix_jobs_waiting",
            ["task_queue_id", sa.text("priority DESC"), "id"],
            unique=False,
            sqlite_where=sa.text("state = 'WAITING' AND lease_until IS NULL"),
            postgresql_where=sa.text("state = 'WAITING' AND lease_until IS NULL"),
        )

    op.create_table(
        "output_files",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", name=op.f("pk_output_files")),
    )
    with op.batch_alter_table("output_files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_output_files_checksum"), ["checksum"], unique=False)

    op.create_table(
        "pilots",
        sa.Column("stamp", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("vos_json", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("glidein_id", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("node_json", sa.Text(), nullable=False),
        sa.Column("drain_reason", sa.String(), nullable=False),
        sa.Column("drain_evicts", sa.Boolean(), nullable=False),
        sa.Column("jobs_ended", sa.Integer(), nullable=False),
        sa.Column("registered", sa.DateTime(timezone=True), nullable=False),
        sa.Column("registered_by", sa.String(), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ends", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilots")),
    )
    with op.batch_alter_table("pilots", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pilots_ended"), ["ended"], unique=False)
        batch_op.create_index("ix_pilots_queue", ["site", "ce", "queue"], unique=False)
        batch_op.create_index(batch_op.f("ix_pilots_state"), ["state"], unique=False)

    op.create_table(
        "pools",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("requirements_json", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idle_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("mapped", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tree_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pools")),
    )
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pools_mapped"), ["mapped"], unique=False)

    op.create_table(
        "requests",
        sa.Column("caller", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("answered", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("caller", "request_id", name=op.f("pk_requests")),
    )
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_requests_answered"), ["answered"], unique=False)

    op.create_table(
        "server_life",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("last_alive", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_life")),
    )
    op.create_table(
        "slots",
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pilot_stamp", "name", name=op.f("pk_slots")),
    )
    op.create_table(
        "stored_files",
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("stored", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("checksum", "vo", "owner", name=op.f("pk_stored_files")),
    )
    with op.batch_alter_table("stored_files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_stored_files_stored"), ["stored"], unique=False)

    op.create_table(
        "task_queues",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("needs_json", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task_queues")),
        sa.UniqueConstraint("key", name=op.f("uq_task_queues_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("task_queues", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_task_queues_pool_id"), ["pool_id"], unique=False)

    op.create_table(
        "templates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("description_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_templates")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "trees",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_trees")),
    )
    op.create_table(
        "usage",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("core_s", sa.Float(), nullable=False),
        sa.Column("updated", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", "owner", name=op.f("pk_usage")),
    )
    op.create_table(
        "pool_queues",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_pool_queues_pool_id_pools")),
        sa.PrimaryKeyConstraint("pool_id", "site", "ce", "queue", name=op.f("pk_pool_queues")),
    )


def downgrade() -> None:
    op.drop_table("pool_queues")
    op.drop_table("usage")
    op.drop_table("trees")
    op.drop_table("templates")
    with op.batch_alter_table("task_queues", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_task_queues_pool_id"))

    op.drop_table("task_queues")
    with op.batch_alter_table("stored_files", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_stored_files_stored"))

    op.drop_table("stored_files")
    op.drop_table("slots")
    op.drop_table("server_life")
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_requests_answered"))

    op.drop_table("requests")
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_pools_mapped"))

    op.drop_table("pools")
    with op.batch_alter_table("pilots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_pilots_state"))
        batch_op.drop_index("ix_pilots_queue")
        batch_op.drop_index(batch_op.f("ix_pilots_ended"))

    op.drop_table("pilots")
    with op.batch_alter_table("output_files", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_output_files_checksum"))

    op.drop_table("output_files")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_waiting")
        batch_op.drop_index(batch_op.f("ix_jobs_template_id"))
        batch_op.drop_index("ix_jobs_pilot_stamp")
        batch_op.drop_index("ix_jobs_owner_id")
        batch_op.drop_index(
            "ix_jobs_live",
            sqlite_where=sa.text("state NOT IN ('DONE', 'FAILED', 'REMOVED')"),
            postgresql_where=sa.text("state NOT IN ('DONE', 'FAILED', 'REMOVED')"),
        )
        batch_op.drop_index(
            "ix_jobs_lingering",
            sqlite_where=sa.text("state IN ('WAITING', 'HELD', 'REMOVED') AND lease_until IS NOT NULL"),
            postgresql_where=sa.text("state IN ('WAITING', 'HELD', 'REMOVED') AND lease_until IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_jobs_leased",
            sqlite_where=sa.text("state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"),
            postgresql_where=sa.text("state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"),
        )
        batch_op.drop_index(
            "ix_jobs_held", sqlite_where=sa.text("state = 'HELD'"), postgresql_where=sa.text("state = 'HELD'")
        )
        batch_op.drop_index("ix_jobs_ended")

    op.drop_table("jobs")
    with op.batch_alter_table("job_events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_job_events_time"))
        batch_op.drop_index("ix_job_events_job_id_id")

    op.drop_table("job_events")
    with op.batch_alter_table("input_files", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_input_files_checksum"))

    op.drop_table("input_files")
    op.drop_table("bans")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_attempts_unreported", sqlite_where=sa.text("NOT reported"), postgresql_where=sa.text("NOT reported")
        )

    op.drop_table("attempts")
