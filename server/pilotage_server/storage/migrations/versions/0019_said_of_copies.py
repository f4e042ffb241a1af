"""What the hooks of routers have said of copies is kept.

Revision ID: 0019_said_of_copies
Revises: 0018_copies_in_order
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_said_of_copies"
down_revision = "0018_copies_in_order"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0018_copies_in_order to 0019_said_of_copies."""
    op.add_column("copies", sa.Column("attributes_json", sa.Text(), nullable=True))
