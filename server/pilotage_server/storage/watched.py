"""Jobs under policies in the database: found in rounds, and all put under watch for the operators' sake."""

from __future__ import annotations

from sqlalchemy import select, text, tuple_, update
from sqlmodel import Session

from pilotage_server.core.job_record import JobRecord, PolicyWatch
from pilotage_server.storage.jobs import JOBS, job_record
from pilotage_server.storage.tables.conditions import LIVE_JOB, WATCHED_JOB

Place = tuple[int, int]
"""How far a round has come: the watch and the id of the last job looked at."""


def first_place(least: PolicyWatch) -> Place:
    """Return where a round begins that looks at jobs of this watch and above."""
    return (least.value, 0)


def next_watched(session: Session, after: Place, most: int) -> tuple[JobRecord, ...]:
    """Return the next jobs of a round, at most so many; none = the round is over."""
    query = (
        select(JOBS)
        .where(text(WATCHED_JOB), tuple_(JOBS.c.watch, JOBS.c.id) > after)
        .order_by(JOBS.c.watch, JOBS.c.id)
        .limit(most)
    )
    return tuple(job_record(row) for row in session.execute(query).mappings())


def watch_all(session: Session, least: PolicyWatch) -> int:
    """Let every live job be looked at no less often than this; return how many were not."""
    statement = update(JOBS).where(text(LIVE_JOB), JOBS.c.watch < least.value).values(watch=least.value)
    return session.connection().execute(statement).rowcount
