"""Mappings of pools are stored whole.

Revision ID: 0007_mappings
Revises: 0006_diet
"""

from __future__ import annotations

revision = "0007_mappings"
down_revision = "0006_diet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0006_diet to 0007_mappings."""
