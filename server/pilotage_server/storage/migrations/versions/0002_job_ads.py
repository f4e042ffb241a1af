"""Attributes of jobs that policies of slots refer to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_job_ads"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "significant_attributes",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_significant_attributes")),
    )
