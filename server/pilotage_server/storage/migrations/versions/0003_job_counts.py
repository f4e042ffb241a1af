"""Counts of jobs by minute and VO."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    numbers = ("waiting", "running", "done", "failed", "removed")
    op.create_table(
        "job_counts",
        sa.Column("minute", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("vo", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False) for name in numbers),
        sa.PrimaryKeyConstraint("minute", "vo", name="pk_job_counts"),
    )
