"""It is known when its batch system last said of a glidein that it is there.

Revision ID: 0017_seen_glideins
Revises: 0016_races
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pilotage_server.storage.tables import UtcDateTime

revision = "0017_seen_glideins"
down_revision = "0016_races"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from 0016_races to 0017_seen_glideins."""
    op.add_column("pilots", sa.Column("glidein_seen", UtcDateTime(), nullable=True))
