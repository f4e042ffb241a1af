"""Jobs count as HTCondor counts, and are under policies of their own.

Revision ID: 0003_job_policies
Revises: 0002_job_ads
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_job_policies"
down_revision = "0002_job_ads"
branch_labels = None
depends_on = None

_WATCHED = "watch > 0 AND state NOT IN ('DONE', 'FAILED', 'REMOVED')"

_SINCE_THEIR_LAST_STEP = """
    UPDATE jobs SET state_since = (SELECT MAX(job_events."time") FROM job_events WHERE job_events.job_id = jobs.id)
    WHERE state NOT IN ('DONE', 'FAILED', 'REMOVED')
"""
_HELD_BY_SOMEBODY = """
    UPDATE jobs SET hold_code = 1, hold_subcode = 0, hold_history_json = :held_once WHERE state = 'HELD'
"""
_HELD_ONCE = '{"counts":[[1,1]],"last":null}'


def upgrade() -> None:
    """Bring the schema from 0002_job_ads to 0003_job_policies."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("state_since", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("starts", sa.Integer(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("wall_clock_s", sa.Float(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("suspended_s", sa.Float(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("hold_code", sa.Integer(), nullable=True))
        jobs.add_column(sa.Column("hold_subcode", sa.Integer(), nullable=True))
        jobs.add_column(sa.Column("hold_history_json", sa.Text(), nullable=False, server_default=""))
        jobs.add_column(sa.Column("watch", sa.Integer(), nullable=False, server_default="0"))
        jobs.create_index(
            "ix_jobs_watched",
            ["watch", "id"],
            unique=False,
            sqlite_where=sa.text(_WATCHED),
            postgresql_where=sa.text(_WATCHED),
        )
    op.execute(_SINCE_THEIR_LAST_STEP)
    # Only owners and operators held jobs before: a hold without that code would be anybody's policy to lift.
    op.execute(sa.text(_HELD_BY_SOMEBODY).bindparams(held_once=_HELD_ONCE))
