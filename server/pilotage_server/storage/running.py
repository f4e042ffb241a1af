"""How many jobs hold a lease, counted over the index on just these."""

from __future__ import annotations

from sqlalchemy import func, select, text
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.storage.jobs import JOBS
from pilotage_server.storage.tables.conditions import LEASED_JOB

_IS_LEASED = text(f"jobs.{LEASED_JOB}")


def running_by_pool(session: Session) -> dict[str, int]:
    """Return the counts by pool id; "" = jobs without a pool."""
    query = select(JOBS.c.pool_id, func.count()).where(_IS_LEASED).group_by(JOBS.c.pool_id)
    return {row[0]: row[1] for row in session.execute(query)}


def running_by_queue(session: Session) -> dict[QueueId, int]:
    """Return the counts by the queue that the jobs were matched at."""
    place = JOBS.c.site, JOBS.c.ce, JOBS.c.queue
    query = select(*place, func.count()).where(_IS_LEASED).group_by(*place)
    return {QueueId(site, ce, queue): count for site, ce, queue, count in session.execute(query)}
