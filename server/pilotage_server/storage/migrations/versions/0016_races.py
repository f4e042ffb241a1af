"""Copies of jobs race.

Revision ID: 0016_races
Revises: 0015_routes
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pilotage_server.storage.tables import UtcDateTime

revision = "0016_races"
down_revision = "0015_routes"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Bring the schema from 0015_routes to 0016_races."""
    for name in ("race", "race_set"):
        op.add_column("jobs", sa.Column(name, _ID, server_default="0", nullable=False))
    _partial("ix_jobs_race", ["race"], "race > 0")
    _partial("ix_jobs_race_set", ["race_set", "id"], "race_set > 0 AND ended IS NULL")
    op.create_table(
        "race_sets",
        sa.Column("id", _ID, autoincrement=False, nullable=False),
        sa.Column("last_id", _ID, nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("urgent", sa.Boolean(), nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("created", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_race_sets")),
    )
    op.create_table(
        "races",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("began", UtcDateTime(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("copies", sa.Integer(), nullable=False),
        sa.Column("first_copy", _ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ended", UtcDateTime(), nullable=True),
        sa.Column("winner", _ID, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("lost_core_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_races")),
    )
    op.create_index("ix_races_ended", "races", ["ended"])


def _partial(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "jobs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
