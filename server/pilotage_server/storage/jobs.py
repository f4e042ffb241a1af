"""Jobs in the database: found, and inserted in bulk, arrays and all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import insert, literal, select, update
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage_server.core.holds import NEVER_HELD, history_to_json
from pilotage_server.core.job_record import JobRecord, PolicyWatch
from pilotage_server.core.jobs import JobState
from pilotage_server.storage.job_rows import JOBS, job_record, load_jobs

__all__ = [
    "CHUNK",
    "JOBS",
    "JobQuery",
    "NewJob",
    "chunks",
    "find_jobs",
    "insert_jobs",
    "job_record",
    "load_job",
    "load_jobs",
]

Item = TypeVar("Item")

CHUNK = 5000
"""Parameters of one statement stay below the databases' limits (SQLite 32,766, PostgreSQL 65,535)."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is to be a job, or an array of `count` jobs; `name` keeps its macros until it is read."""

    template_id: int
    owner: str
    vo: str
    group: str
    name: str
    state: JobState
    reason: str
    priority: int
    task_queue_id: int
    pool_id: str
    lease: timedelta | None
    count: int
    watch: PolicyWatch = PolicyWatch.NEVER
    hold_code: int | None = None


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
    """Which jobs: no `states` = in any; `owner` or `vo` None = anybody's; `pool` "" = of any; `nothing` = none."""

    states: frozenset[JobState] = frozenset()
    owner: str | None = None
    vo: str | None = None
    pool: str = ""
    newest_first: bool = False
    nothing: bool = False


def find_jobs(session: Session, wanted: JobQuery, after_id: int, limit: int) -> tuple[JobRecord, ...]:
    """Return at most `limit` jobs that come after the one with `after_id` in the order asked; 0 = from the first."""
    if wanted.nothing:
        return ()
    query = select(JOBS).order_by(JOBS.c.id.desc() if wanted.newest_first else JOBS.c.id)
    if after_id:
        query = query.where(JOBS.c.id < after_id if wanted.newest_first else JOBS.c.id > after_id)
    if wanted.states:
        query = query.where(JOBS.c.state.in_(sorted(wanted.states)))
    for column, value in ((JOBS.c.owner, wanted.owner), (JOBS.c.vo, wanted.vo), (JOBS.c.pool_id, wanted.pool or None)):
        if value is not None:
            query = query.where(column == value)
    rows = session.execute(query.limit(limit)).mappings()
    return tuple(job_record(row) for row in rows)


def insert_jobs(session: Session, new: Sequence[NewJob], now: datetime) -> list[range | list[int]]:
    """Store the jobs and return the ids of each array, its jobs in order."""
    firsts = _insert_firsts(session, new, now)
    ids: list[range | list[int]] = []
    for job, first in zip(new, firsts, strict=True):
        ids.append(_insert_rest(session, first, job) if job.count > 1 else [first])
    return ids


def _insert_firsts(session: Session, new: Sequence[NewJob], now: datetime) -> list[int]:
    rows = [_first_row(job, now) for job in new]
    statement = insert(JOBS).returning(JOBS.c.id, sort_by_parameter_order=True)
    ids = list(session.connection().execute(statement, rows).scalars())
    # The first job's own id is the array's number, which is known only now.
    for chunk in chunks(ids):
        session.execute(update(JOBS).where(JOBS.c.id.in_(chunk)).values(cluster=JOBS.c.id))
    return ids


def _first_row(job: NewJob, now: datetime) -> dict[str, Any]:
    return _UNSET | {
        "template_id": job.template_id,
        "owner": job.owner,
        "vo": job.vo,
        "group": job.group,
        "name": job.name,
        "state": job.state.value,
        "reason": job.reason,
        "priority": job.priority,
        "task_queue_id": job.task_queue_id,
        "pool_id": job.pool_id,
        "lease_s": job.lease.total_seconds() if job.lease else 0.0,
        "submitted": now,
        "watch": job.watch.value,
        "hold_code": job.hold_code,
        "hold_subcode": None if job.hold_code is None else 0,
        "hold_history_json": "" if job.hold_code is None else history_to_json(NEVER_HELD.begun(job.hold_code)),
    }


_UNSET: dict[str, Any] = {
    "cluster": 0,
    "process": 0,
    "attempt": 0,
    "spent_attempts": 0,
    "pilot_stamp": "",
    "site": "",
    "ce": "",
    "queue": "",
    "node": "",
    "slot": "",
}


def _insert_rest(session: Session, first: int, job: NewJob) -> range | list[int]:
    # The database copies the first row, so an array of 100,000 jobs is one statement and no traffic.
    numbers = select(literal(1).label("process")).cte("numbers", recursive=True)
    numbers = numbers.union_all(
        select(numbers.c.process + 1).where(numbers.c.process < job.count - 1),
    )
    names = [column.name for column in JOBS.c if column.name != "id"]
    copied = [numbers.c.process if name == "process" else JOBS.c[name] for name in names]
    rows = select(*copied).select_from(JOBS.join(numbers, literal(value=True))).where(JOBS.c.id == first)
    session.execute(insert(JOBS).from_select(names, rows.order_by(numbers.c.process)))
    of_array = select(JOBS.c.id).where(JOBS.c.template_id == job.template_id)
    return list(session.execute(of_array.order_by(JOBS.c.process)).scalars())
