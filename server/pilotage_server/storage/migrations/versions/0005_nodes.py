"""Slots have ads, and nodes have what operators set on them.

Revision ID: 0005_nodes
Revises: 0004_shares
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_nodes"
down_revision = "0004_shares"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0004_shares to 0005_nodes."""
    with op.batch_alter_table("slots") as slots:
        slots.add_column(sa.Column("ad", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "node_settings",
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("settings_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("site", "node", name=op.f("pk_node_settings")),
    )
