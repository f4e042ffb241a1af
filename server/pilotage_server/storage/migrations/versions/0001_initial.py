"""The schema of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("matched", _TIME, nullable=False),
        sa.Column("started", _TIME, nullable=True),
        sa.Column("ended", _TIME, nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("cpu_s", sa.Float(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.Column("suspended_s", sa.Float(), nullable=False),
        sa.Column("peak_memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("reported", sa.Boolean(), nullable=False),
        sa.Column("weight", sa.Float(), server_default="0", nullable=False),
        sa.Column("charged_vo", sa.String(), server_default="", nullable=False),
        sa.Column("charged_group", sa.String(), server_default="", nullable=False),
        sa.Column("charged_owner", sa.String(), server_default="", nullable=False),
        sa.Column("metered", _TIME, nullable=True),
        sa.Column("trial", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("plugged", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("gpus", sa.Integer(), server_default="0", nullable=False),
        sa.Column("system_cpu_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("peak_disk_mib", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_attempts"),
    )
    _partial(
        "ix_attempts_taken", "attempts", ["pilot_stamp", "job_id", "attempt"], "reported IS FALSE AND ended IS NOT NULL"
    )
    _partial("ix_attempts_unreported", "attempts", ["pilot_stamp", "job_id", "attempt"], "NOT reported")

    op.create_table(
        "bans",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_bans"),
    )
    op.create_table(
        "blocks",
        sa.Column("id", _ID, autoincrement=False, nullable=False),
        sa.Column("last", _ID, nullable=False),
        sa.Column("submission", _ID, nullable=False),
        sa.Column("parents", sa.Integer(), nullable=False),
        sa.Column("unmet", sa.Integer(), nullable=False),
        sa.Column("next_job", _ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_blocks"),
    )
    _partial("ix_blocks_met", "blocks", ["id"], "unmet = 0")

    op.create_table(
        "copies",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("router", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("routed", _TIME, nullable=False),
        sa.Column("attributes_json", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_copies"),
    )
    op.create_table(
        "daily_usage",
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("interrupted", sa.BigInteger(), nullable=False),
        sa.Column("done_core_s", sa.Float(), nullable=False),
        sa.Column("failed_core_s", sa.Float(), nullable=False),
        sa.Column("interrupted_core_s", sa.Float(), nullable=False),
        sa.Column("cpu_s", sa.Float(), nullable=False),
        sa.Column("gpu_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("day", "vo", "group", "owner", "site", name="pk_daily_usage"),
    )
    op.create_table(
        "dependencies",
        sa.Column("source", _ID, autoincrement=False, nullable=False),
        sa.Column("block", _ID, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("source", "block", name="pk_dependencies"),
    )
    op.create_index("ix_dependencies_block", "dependencies", ["block"])

    op.create_table(
        "dependency_sources",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("submission", _ID, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("first", _ID, nullable=False),
        sa.Column("last", _ID, nullable=False),
        sa.Column("watched", _ID, nullable=False),
        sa.Column("futile", sa.Boolean(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dependency_sources"),
        sqlite_autoincrement=True,
    )
    _partial("ix_dependency_sources_range", "dependency_sources", ["first", "last"], "first < last")
    op.create_index("ix_dependency_sources_submission", "dependency_sources", ["submission"])
    op.create_index("ix_dependency_sources_watched", "dependency_sources", ["watched"])

    op.create_table(
        "group_quotas",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", name="pk_group_quotas"),
    )
    op.create_table(
        "input_files",
        sa.Column("template_id", _ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("template_id", "name", name="pk_input_files"),
    )
    op.create_index("ix_input_files_checksum", "input_files", ["checksum"])

    op.create_table(
        "incarnations",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("began", _TIME, nullable=False),
        sa.Column("backup_job", _ID, nullable=False),
        sa.Column("backup_position", _ID, nullable=False),
        sa.Column("backup_attempt", sa.Integer(), nullable=False),
        sa.Column("base_job", _ID, nullable=False),
        sa.Column("base_position", _ID, nullable=False),
        sa.Column("base_attempt", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_incarnations"),
    )
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("database_id", sa.String(), nullable=False),
        sa.Column("schema_name", sa.String(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("store", sa.String(), nullable=False),
        sa.Column("keys_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_installation"),
    )
    op.create_table(
        "job_events",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("time", _TIME, nullable=False),
        sa.Column("from_state", sa.String(), nullable=False),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_events_job_id", "job_events", ["job_id"])

    op.create_table(
        "jobs",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("template_id", _ID, nullable=False),
        sa.Column("cluster", _ID, nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("cluster_jobs", sa.Integer(), server_default="1", nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("spent_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_s", sa.Float(), nullable=False),
        sa.Column("lease_until", _TIME, nullable=True),
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("submitted", _TIME, nullable=False),
        sa.Column("started", _TIME, nullable=True),
        sa.Column("ended", _TIME, nullable=True),
        sa.Column("state_since", _TIME, nullable=True),
        sa.Column("starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("wall_clock_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("suspended_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("hold_code", sa.Integer(), nullable=True),
        sa.Column("hold_subcode", sa.Integer(), nullable=True),
        sa.Column("hold_history_json", sa.Text(), server_default="", nullable=False),
        sa.Column("watch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("race", _ID, server_default="0", nullable=False),
        sa.Column("race_set", _ID, server_default="0", nullable=False),
        sa.Column("max_starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("fenced_until", _TIME, nullable=True),
        sa.Column("attempt_floor", sa.Integer(), server_default="0", nullable=False),
        sa.Column("exit_check", sa.Integer(), server_default="0", nullable=False),
        sa.Column("completions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("awaited", sa.Integer(), server_default="0", nullable=False),
        sa.Column("blocked_by", _ID, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    _partial("ix_jobs_ended", "jobs", ["ended"], "ended IS NOT NULL")
    _partial("ix_jobs_live", "jobs", ["task_queue_id", "template_id"], "ended IS NULL")
    _partial("ix_jobs_live_owner", "jobs", ["vo", "owner", "id"], "ended IS NULL")
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])
    _partial("ix_jobs_race", "jobs", ["race"], "race > 0")
    _partial("ix_jobs_race_set", "jobs", ["race_set", "id"], "race_set > 0 AND ended IS NULL")
    _partial("ix_jobs_timed", "jobs", ["lease_until"], "lease_until IS NOT NULL")
    _partial(
        "ix_jobs_waiting",
        "jobs",
        ["task_queue_id", sa.text("priority DESC"), "id"],
        "state = 'WAITING' AND lease_until IS NULL",
    )
    _partial("ix_jobs_watched", "jobs", ["watch", "id"], "watch > 0 AND ended IS NULL")

    op.create_table(
        "node_settings",
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("settings_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("site", "node", name="pk_node_settings"),
    )
    op.create_table(
        "output_files",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("size", _ID, nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", name="pk_output_files"),
    )
    op.create_index("ix_output_files_checksum", "output_files", ["checksum"])

    op.create_table(
        "parent_events",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_parent_events"),
    )

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
        sa.Column("registered", _TIME, nullable=False),
        sa.Column("registered_by", sa.String(), nullable=False),
        sa.Column("last_seen", _TIME, nullable=True),
        sa.Column("ends", _TIME, nullable=True),
        sa.Column("ended", _TIME, nullable=True),
        sa.Column("came_back_empty", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("glidein_seen", _TIME, nullable=True),
        sa.Column("glidein_started", _TIME, nullable=True),
        sa.Column("nonce_hash", sa.String(), server_default="", nullable=False),
        sa.Column("alarm", sa.String(), server_default="", nullable=False),
        sa.Column("isolation", sa.String(), server_default="", nullable=False),
        sa.Column("credential_ends", _TIME, nullable=True),
        sa.Column("report_requested", _TIME, nullable=True),
        sa.Column("report_answered", _TIME, nullable=True),
        sa.Column("queue_set_json", sa.String(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("stamp", name="pk_pilots"),
    )
    _partial("ix_pilots_credential_ends", "pilots", ["stamp", "credential_ends"], "credential_ends IS NOT NULL")
    _partial("ix_pilots_empty", "pilots", ["ended"], "came_back_empty")
    op.create_index("ix_pilots_ended", "pilots", ["ended"])
    op.create_index("ix_pilots_queue", "pilots", ["site", "ce", "queue", "registered"])
    _partial("ix_pilots_queue_set", "pilots", ["queue_set_json", "registered"], "queue_set_json <> ''")
    op.create_index("ix_pilots_state", "pilots", ["state"])

    op.create_table(
        "pools",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("requirements_json", sa.Text(), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("idle_since", _TIME, nullable=True),
        sa.Column("mapped", _TIME, nullable=True),
        sa.Column("tree_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pools"),
    )
    op.create_table(
        "priority_factors",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("factor", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", "owner", name="pk_priority_factors"),
    )
    op.create_table(
        "race_sets",
        sa.Column("id", _ID, autoincrement=False, nullable=False),
        sa.Column("last_id", _ID, nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("urgent", sa.Boolean(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_race_sets"),
    )
    op.create_table(
        "races",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("began", _TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("copies", sa.Integer(), nullable=False),
        sa.Column("first_copy", _ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ended", _TIME, nullable=True),
        sa.Column("winner", _ID, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("lost_core_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_races"),
    )
    op.create_index("ix_races_ended", "races", ["ended"])

    op.create_table(
        "requests",
        sa.Column("caller", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("answered", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("caller", "request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_answered", "requests", ["answered"])

    op.create_table(
        "revocations",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("issuer", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("made", _TIME, nullable=False),
        sa.Column("expires", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_revocations"),
    )
    op.create_index("ix_revocations_expires", "revocations", ["expires"])

    op.create_table(
        "routers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("told", _TIME, nullable=False),
        sa.Column("routes_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_routers"),
    )
    op.create_table(
        "running_counts",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_running_counts"),
    )
    op.create_table(
        "server_life",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("last_alive", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_server_life"),
    )
    op.create_table(
        "significant_attributes",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_significant_attributes"),
    )
    op.create_table(
        "slots",
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state_json", sa.Text(), nullable=False),
        sa.Column("ad", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("pilot_stamp", "name", name="pk_slots"),
    )
    op.create_table(
        "stored_files",
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("size", _ID, nullable=False),
        sa.Column("stored", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("checksum", "vo", "owner", name="pk_stored_files"),
    )
    op.create_index("ix_stored_files_holder", "stored_files", ["vo", "owner", "size"])
    op.create_index("ix_stored_files_stored", "stored_files", ["stored"])

    op.create_table(
        "notification_cursor",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("position", _ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notification_cursor"),
    )
    op.create_table(
        "notifications",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("subscription", _ID, nullable=False),
        sa.Column("occasion", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("made", _TIME, nullable=False),
        sa.Column("due", _TIME, nullable=True),
        sa.Column("leased", sa.Boolean(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("delivered", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notifications_subscription", "notifications", ["subscription"])
    _partial("ix_notifications_due", "notifications", ["due"], "due IS NOT NULL")

    op.create_table(
        "subscriptions",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("first", _ID, nullable=False),
        sa.Column("last", _ID, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("occasions_json", sa.String(), nullable=False),
        sa.Column("left_json", sa.String(), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("position", _ID, nullable=False),
        sa.Column("check_end", _TIME, nullable=True),
        sa.Column("closed", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_subscriptions"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_subscriptions_owner", "subscriptions", ["owner", "id"])
    _partial("ix_subscriptions_open", "subscriptions", ["vo", "owner"], "closed IS NULL")
    _partial("ix_subscriptions_closed", "subscriptions", ["closed"], "closed IS NOT NULL")

    op.create_table(
        "submission_parts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("submission", _ID, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("blocks_json", sa.Text(), nullable=False),
        sa.Column("fenced_until", _TIME, nullable=True),
        sa.Column("attempt_floor", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_submission_parts"),
    )
    op.create_index("ix_submission_parts_submission", "submission_parts", ["submission"])
    op.create_index("ix_submission_parts_vo", "submission_parts", ["vo"])

    op.create_table(
        "tails",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("pilot_stamp", sa.String(), nullable=False),
        sa.Column("wanted_until", _TIME, nullable=False),
        sa.Column("posted", sa.Boolean(), nullable=False),
        sa.Column("start", _ID, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "is_error", name="pk_tails"),
    )
    op.create_index("ix_tails_wanted_until", "tails", ["wanted_until"])

    op.create_table(
        "task_queues",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("needs_json", sa.Text(), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_task_queues"),
        sa.UniqueConstraint("key", name="uq_task_queues_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_queues_pool_id", "task_queues", ["pool_id"])

    op.create_table(
        "templates",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("description_json", sa.Text(), nullable=False),
        sa.Column("jobs", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_templates"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "throttles",
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ordered_by", sa.String(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("ends", sa.Integer(), nullable=False),
        sa.Column("proofs", sa.Integer(), nullable=False),
        sa.Column("pause_s", sa.Float(), nullable=False),
        sa.Column("next_trial", _TIME, nullable=True),
        sa.Column("judged", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("place", name="pk_throttles"),
    )
    op.create_table(
        "trees",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_trees"),
    )
    op.create_table(
        "turns",
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.Column("serves_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent", name="pk_turns"),
    )
    op.create_table(
        "usage",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("core_s", sa.Float(), nullable=False),
        sa.Column("updated", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", "owner", name="pk_usage"),
    )
    op.create_table(
        "workflows",
        sa.Column("id", _ID, autoincrement=False, nullable=False),
        sa.Column("last", _ID, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("submitted", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workflows"),
    )


def _partial(name: str, table: str, columns: list[str | sa.TextClause], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
