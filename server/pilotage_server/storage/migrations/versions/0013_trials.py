"""Trials of throttled places are told from what else ran there.

Revision ID: 0013_trials
Revises: 0012_empty_pilots
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_trials"
down_revision = "0012_empty_pilots"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0012_empty_pilots to 0013_trials."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("trial", sa.Boolean(), nullable=False, server_default="0"))
