"""Graphs of workflows, and the workflows of an owner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("workflows", sa.Column("edges_json", sa.Text(), nullable=True))
    op.create_index("ix_workflows_owner", "workflows", ["owner", "id"])
