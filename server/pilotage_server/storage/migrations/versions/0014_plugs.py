"""The server knows of payloads that have failed and keep their slots for a while.

Revision ID: 0014_plugs
Revises: 0013_trials
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_plugs"
down_revision = "0013_trials"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0013_trials to 0014_plugs."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("plugged", sa.Boolean(), nullable=False, server_default="0"))
