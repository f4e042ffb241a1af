"""Fewer indexes on the tables of jobs.

Revision ID: 0006_diet
Revises: 0005_nodes
"""

from __future__ import annotations

revision = "0006_diet"
down_revision = "0005_nodes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0005_nodes to 0006_diet."""
