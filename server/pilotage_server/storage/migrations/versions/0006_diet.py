"""Fewer indexes on the tables of jobs.

Revision ID: 0006_diet
Revises: 0005_nodes
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_diet"
down_revision = "0005_nodes"
branch_labels = None
depends_on = None


_LIVE = "ended IS NULL"
_TIMED = "lease_until IS NOT NULL"
_HELD = "hold_code IS NOT NULL"
_WATCHED = "watch > 0 AND ended IS NULL"
_ENDED = "ended IS NOT NULL"
_TAKEN = "NOT reported AND ended IS NOT NULL"

_GONE = {
    "jobs": (
        "ix_jobs_template_id",
        "ix_jobs_leased",
        "ix_jobs_lingering",
        "ix_jobs_held",
        "ix_jobs_live",
        "ix_jobs_watched",
        "ix_jobs_ended",
        "ix_jobs_pilot_stamp",
    ),
    "job_events": ("ix_job_events_job_id_id", "ix_job_events_time"),
}

_COUNT_JOBS = "UPDATE templates SET jobs = (SELECT count(*) FROM jobs WHERE jobs.template_id = templates.id)"


def upgrade() -> None:
    """Bring the schema from 0005_nodes to 0006_diet."""
    with op.batch_alter_table("templates") as templates:
        templates.add_column(sa.Column("jobs", sa.Integer(), nullable=False, server_default="0"))
    op.execute(_COUNT_JOBS)  # while the index on jobs' templates is there
    for table, names in _GONE.items():
        for name in names:
            op.drop_index(name, table)
    _partial("jobs", "ix_jobs_timed", "lease_until", where=_TIMED)
    _partial("jobs", "ix_jobs_held", "id", where=_HELD)
    _partial("jobs", "ix_jobs_live", "task_queue_id", "template_id", where=_LIVE)
    _partial("jobs", "ix_jobs_watched", "watch", "id", where=_WATCHED)
    _partial("jobs", "ix_jobs_ended", "ended", where=_ENDED)
    _partial("attempts", "ix_attempts_taken", "pilot_stamp", "ended", where=_TAKEN)
    op.create_index("ix_job_events_job_id", "job_events", ["job_id"])


def _partial(table: str, name: str, *columns: str, where: str) -> None:
    op.create_index(name, table, list(columns), sqlite_where=sa.text(where), postgresql_where=sa.text(where))
