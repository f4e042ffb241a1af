"""Where a pool may run follows from its requirements and the tree that it was mapped by, and is stored no more.

Revision ID: 0007_mappings
Revises: 0006_diet
"""

from __future__ import annotations

from alembic import op

revision = "0007_mappings"
down_revision = "0006_diet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0006_diet to 0007_mappings."""
    op.drop_table("pool_queues")
    op.drop_index(op.f("ix_pools_mapped"), table_name="pools")
