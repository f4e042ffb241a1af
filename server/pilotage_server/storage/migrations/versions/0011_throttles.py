"""Black holes are throttled.

Revision ID: 0011_throttles
Revises: 0010_turns
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pilotage_server.storage.tables import UtcDateTime

revision = "0011_throttles"
down_revision = "0010_turns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0010_turns to 0011_throttles."""
    op.create_table(
        "throttles",
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ordered_by", sa.String(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("ends", sa.Integer(), nullable=False),
        sa.Column("proofs", sa.Integer(), nullable=False),
        sa.Column("pause_s", sa.Float(), nullable=False),
        sa.Column("next_trial", UtcDateTime(), nullable=True),
        sa.Column("judged", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_throttles")),
    )
