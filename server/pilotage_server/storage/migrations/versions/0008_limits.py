"""What running limits count is kept.

Revision ID: 0008_limits
Revises: 0007_mappings
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_limits"
down_revision = "0007_mappings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0007_mappings to 0008_limits."""
    # It stays empty: every server counts at its start.
    op.create_table(
        "running_counts",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_running_counts")),
    )
