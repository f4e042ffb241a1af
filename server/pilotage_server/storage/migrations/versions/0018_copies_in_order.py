"""What a router holds, and what was taken from it, is found in order.

Revision ID: 0018_copies_in_order
Revises: 0017_seen_glideins
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_copies_in_order"
down_revision = "0017_seen_glideins"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0017_seen_glideins to 0018_copies_in_order."""
    _anew("ix_attempts_unreported", "NOT reported")
    _anew("ix_attempts_taken", "reported IS FALSE AND ended IS NOT NULL")


def _anew(name: str, where: str) -> None:
    op.drop_index(name, "attempts")
    columns = ["pilot_stamp", "job_id", "attempt"]
    op.create_index(name, "attempts", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
