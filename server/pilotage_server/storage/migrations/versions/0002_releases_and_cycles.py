"""Releases of pilots and agents, how the last cycles of agents have ended, and traces of submissions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("pilots", sa.Column("release", sa.String(), server_default="", nullable=False))
    op.add_column("turns", sa.Column("release", sa.String(), server_default="", nullable=False))
    op.add_column("turns", sa.Column("succeeded", sa.DateTime(timezone=True), nullable=True))
    op.add_column("turns", sa.Column("fault", sa.String(), server_default="", nullable=False))
    op.add_column("templates", sa.Column("traceparent", sa.String(), server_default="", nullable=False))
