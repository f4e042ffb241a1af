"""Copies of agents take turns.

Revision ID: 0010_turns
Revises: 0008_limits
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pilotage_server.storage.tables import UtcDateTime

revision = "0010_turns"
down_revision = "0008_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0008_limits to 0010_turns."""
    op.create_table(
        "turns",
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("agent", name=op.f("pk_turns")),
    )
