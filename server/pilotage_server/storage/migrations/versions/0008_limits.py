"""What running limits count is kept.

Revision ID: 0008_limits
Revises: 0007_mappings
"""

from __future__ import annotations

revision = "0008_limits"
down_revision = "0007_mappings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0007_mappings to 0008_limits."""
