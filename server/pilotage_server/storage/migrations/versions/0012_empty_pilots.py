"""Pilots that came back empty are known as such.

Revision ID: 0012_empty_pilots
Revises: 0011_throttles
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_empty_pilots"
down_revision = "0011_throttles"
branch_labels = None
depends_on = None

_EMPTY = "came_back_empty"


def upgrade() -> None:
    """Bring the schema from 0011_throttles to 0012_empty_pilots."""
    op.add_column("pilots", sa.Column("came_back_empty", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_index("ix_pilots_queue", "pilots")
    op.create_index("ix_pilots_queue", "pilots", ["site", "ce", "queue", "registered"])
    op.create_index(
        "ix_pilots_empty", "pilots", ["ended"], sqlite_where=sa.text(_EMPTY), postgresql_where=sa.text(_EMPTY)
    )
