"""Jobs in the database, found by their ids or by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sqlalchemy import select
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.storage.job_rows import JOBS, job_record, load_jobs

__all__ = [
    "CHUNK",
    "JOBS",
    "JobQuery",
    "chunks",
    "find_jobs",
    "job_record",
    "load_job",
    "load_jobs",
]

Item = TypeVar("Item")

CHUNK = 5000
"""Parameters of one statement stay below the databases' limits (SQLite 32,766, PostgreSQL 65,535)."""


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def load_job(session: Session, job_id: int) -> JobRecord:
    """Return one job; raises NotFoundError."""
    row = session.execute(select(JOBS).where(JOBS.c.id == job_id)).mappings().first()
    if row is None:
        raise NotFoundError("job", str(job_id))
    return job_record(row)


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs: no `states` = in any; `owner` or `vo` None = anybody's; `pool` "" = of any; `nothing` = none.

    `copies` = also those that race or have raced as copies of others.
    """

    states: frozenset[JobState] = frozenset()
    owner: str | None = None
    vo: str | None = None
    pool: str = ""
    newest_first: bool = False
    nothing: bool = False
    copies: bool = False


def find_jobs(session: Session, wanted: JobQuery, after_id: int, limit: int) -> tuple[JobRecord, ...]:
    """Return at most `limit` jobs that come after the one with `after_id` in the order asked; 0 = from the first."""
    if wanted.nothing:
        return ()
    query = select(JOBS).order_by(JOBS.c.id.desc() if wanted.newest_first else JOBS.c.id)
    if after_id:
        query = query.where(JOBS.c.id < after_id if wanted.newest_first else JOBS.c.id > after_id)
    if not wanted.copies:
        query = query.where(JOBS.c.race.in_((0, JOBS.c.id)))
    if wanted.states:
        query = query.where(JOBS.c.state.in_(sorted(wanted.states)))
    for column, value in ((JOBS.c.owner, wanted.owner), (JOBS.c.vo, wanted.vo), (JOBS.c.pool_id, wanted.pool or None)):
        if value is not None:
            query = query.where(column == value)
    rows = session.execute(query.limit(limit)).mappings()
    return tuple(job_record(row) for row in rows)
