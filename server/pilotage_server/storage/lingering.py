"""Jobs in the database that were taken from pilots which may still be running them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select, text, update
from sqlmodel import Session

from pilotage_server.core.jobs import JobState
from pilotage_server.core.waiting import Head
from pilotage_server.storage.attempts import ATTEMPTS
from pilotage_server.storage.jobs import JOBS, chunks
from pilotage_server.storage.tables.conditions import LINGERING_JOB, UNREPORTED

_LINGERS = text(LINGERING_JOB)


def let_go(session: Session, job_ids: Iterable[int]) -> list[tuple[int, Head]]:
    """Take the lease's end off those of the jobs that linger; return those that wait now, by their task queues."""
    columns = JOBS.c.state, JOBS.c.task_queue_id, JOBS.c.priority, JOBS.c.id
    waiting: list[tuple[int, Head]] = []
    for chunk in chunks(sorted(set(job_ids))):
        over = update(JOBS).where(JOBS.c.id.in_(chunk), _LINGERS).values(lease_until=None).returning(*columns)
        rows = session.connection().execute(over).all()
        waiting += ((row.task_queue_id, Head(row.priority, row.id)) for row in rows if row.state == JobState.WAITING)
    return waiting


def lock_lapsed(session: Session, now: datetime, most: int) -> list[int]:
    """Return jobs whose last lease has ended, at most so many, the longest ago first; others take others."""
    lapsed = select(JOBS.c.id).where(_LINGERS, JOBS.c.lease_until < now).order_by(JOBS.c.lease_until, JOBS.c.id)
    return list(session.execute(lapsed.limit(most).with_for_update(skip_locked=True)).scalars())


def lock_of_pilots(session: Session, stamps: Iterable[str]) -> list[int]:
    """Return the jobs that linger at these pilots, by id."""
    found: list[int] = []
    for chunk in chunks(sorted(stamps)):
        # A job that lingers is an attempt that its pilot still has to answer for: there is an index on these.
        asked = select(ATTEMPTS.c.job_id).where(ATTEMPTS.c.pilot_stamp.in_(chunk), text(UNREPORTED))
        there = select(JOBS.c.id).where(JOBS.c.id.in_(asked), JOBS.c.pilot_stamp.in_(chunk), _LINGERS)
        found += session.execute(there.order_by(JOBS.c.id).with_for_update()).scalars()
    return found
