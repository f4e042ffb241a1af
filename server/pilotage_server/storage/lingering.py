"""Jobs in the database that were taken from pilots which may still be running them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select, text, update
from sqlmodel import Session

from pilotage_server.core.jobs import JobState
from pilotage_server.core.waiting import Head
from pilotage_server.storage import bulk
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.jobs import JOBS, chunks
from pilotage_server.storage.tables.conditions import LINGERING_JOB, TAKEN

_LINGERS = text(LINGERING_JOB)

# Of a job that lingers it is the last attempt that was taken, not the last: that of a copy that has won comes later.
LAST_TAKEN = f"SELECT max(attempt) FROM attempts WHERE job_id = jobs.id AND {TAKEN}"  # noqa: S608 - of our own texts only
_LAST_OF_JOBS = f"SELECT id, ({LAST_TAKEN}) FROM jobs WHERE id = ANY(?) AND {LINGERING_JOB}"  # noqa: S608


def lingering_of(session: Session, taken: Iterable[AttemptKey]) -> set[AttemptKey]:
    """Return those attempts that linger, of some that were taken from their pilots.

    Whether their pilots have said by now how they ended makes no difference.
    """
    keys = set(taken)
    last = dict(bulk.rows(session, _LAST_OF_JOBS, sorted({job_id for job_id, _ in keys})))
    return {(job_id, attempt) for job_id, attempt in keys if job_id in last and attempt >= (last[job_id] or 0)}


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
        # There is an index on the attempts that were taken from a pilot which has not answered for them.
        asked = select(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt).where(ATTEMPTS.c.pilot_stamp.in_(chunk), text(TAKEN))
        taken = [(row.job_id, row.attempt) for row in session.execute(asked)]
        ids = sorted({job_id for job_id, _ in lingering_of(session, taken)})
        there = select(JOBS.c.id).where(JOBS.c.id.in_(ids), _LINGERS).order_by(JOBS.c.id).with_for_update()
        found += session.execute(there).scalars()
    return found
