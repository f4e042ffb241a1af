"""Agents, audit, downtimes and outputs of dead pilots; releases of pilots, and traces of submissions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("pilots", sa.Column("release", sa.String(), server_default="", nullable=False))
    op.add_column("templates", sa.Column("traceparent", sa.String(), server_default="", nullable=False))
    held = sa.text("state = 'HELD'")
    op.create_index("ix_jobs_held", "jobs", ["site", "id"], sqlite_where=held, postgresql_where=held)
    _create_agents()
    _create_audit()
    _create_downtimes()
    op.create_table(
        "pilot_logs",
        sa.Column("stamp", sa.String(), nullable=False),
        sa.Column("sent", _TIME, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stamp", name="pk_pilot_logs"),
    )


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("last_seen", _TIME, nullable=False),
        sa.Column("due", _TIME, nullable=False),
        sa.Column("serves_json", sa.Text(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("last_cycle", _TIME, nullable=True),
        sa.Column("last_success", _TIME, nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("error_time", _TIME, nullable=True),
        sa.Column("ended", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("agent", "holder", name="pk_agents"),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("time", _TIME, nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("roles", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("difference", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_time", "audit", ["time"])


def _create_downtimes() -> None:
    op.create_table(
        "downtimes",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("ce", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("made", _TIME, nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("end", _TIME, nullable=False),
        sa.Column("drain_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_downtimes"),
        sqlite_autoincrement=True,
    )
