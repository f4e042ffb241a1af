"""Job routers make copies of jobs.

Revision ID: 0015_routes
Revises: 0014_plugs
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pilotage_server.storage.tables import UtcDateTime

revision = "0015_routes"
down_revision = "0014_plugs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0014_plugs to 0015_routes."""
    op.create_table(
        "copies",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("router", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("routed", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_copies")),
    )
    op.create_table(
        "routers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("told", UtcDateTime(), nullable=False),
        sa.Column("routes_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_routers")),
    )
