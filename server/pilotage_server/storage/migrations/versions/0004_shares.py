"""Attempts know who pays for them and how much; factors and quotas are set at run time.

Revision ID: 0004_shares
Revises: 0003_job_policies
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_shares"
down_revision = "0003_job_policies"
branch_labels = None
depends_on = None

_WHAT_WAS_CHARGED_SO_FAR = """
    UPDATE attempts SET
        weight = cpus,
        charged_vo = COALESCE((SELECT vo FROM jobs WHERE jobs.id = attempts.job_id), ''),
        charged_group = COALESCE((SELECT "group" FROM jobs WHERE jobs.id = attempts.job_id), ''),
        charged_owner = COALESCE((SELECT owner FROM jobs WHERE jobs.id = attempts.job_id), ''),
        metered = CASE WHEN ended IS NULL THEN matched END
"""


def upgrade() -> None:
    """Bring the schema from 0003_job_policies to 0004_shares."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("weight", sa.Float(), nullable=False, server_default="0"))
        attempts.add_column(sa.Column("charged_vo", sa.String(), nullable=False, server_default=""))
        attempts.add_column(sa.Column("charged_group", sa.String(), nullable=False, server_default=""))
        attempts.add_column(sa.Column("charged_owner", sa.String(), nullable=False, server_default=""))
        attempts.add_column(sa.Column("metered", sa.DateTime(timezone=True), nullable=True))
    op.execute(_WHAT_WAS_CHARGED_SO_FAR)
    op.create_table(
        "priority_factors",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("factor", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", "owner", name=op.f("pk_priority_factors")),
    )
    op.create_table(
        "group_quotas",
        sa.Column("vo", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "group", name=op.f("pk_group_quotas")),
    )
