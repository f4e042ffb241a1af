"""What a match writes, and locks when it goes job by job; how many jobs hold leases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, text
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.storage import bulk
from pilotage_server.storage.jobs import job_record
from pilotage_server.storage.tables.conditions import LEASED_JOB, RACING_JOB
from pilotage_server.storage.task_queues import IS_WAITING, JOBS

IS_LEASED = text(LEASED_JOB)


class Place(NamedTuple):
    """Where jobs run: at which pilot, in which queue, on which node."""

    pilot_stamp: str
    site: str
    ce: str
    queue: str
    node: str


class Binding(NamedTuple):
    """A waiting job that is bound to a slot: until when, and where."""

    job_id: int
    lease_until: datetime
    place: Place
    slot: str


_BOUND = "state = 'MATCHED', reason = '', attempt = attempt + 1, started = NULL, exit_code = NULL, signal = NULL"
_WHERE_TO = ("lease_until", *Place._fields, "slot")
_BIND_EACH = f"UPDATE jobs SET {_BOUND}, {', '.join(f'{name} = ?' for name in _WHERE_TO)} WHERE id = ?"  # noqa: S608 - names of ours
_BIND_ALL = f"""
    UPDATE jobs SET {_BOUND}, {", ".join(f"{name} = bound.{name}" for name in _WHERE_TO)}
    FROM unnest(?::timestamptz[], {", ".join("?::text[]" for _ in _WHERE_TO[1:])}, ?::bigint[])
        AS bound ({", ".join(_WHERE_TO)}, id)
    WHERE jobs.id = bound.id
"""  # noqa: S608 - names of ours


def bind(session: Session, bindings: Sequence[Binding]) -> None:
    """Bind locked jobs to slots: what `changes_of_step` gives a job that is matched."""
    times = {until: bulk.moment(session, until) for until in {binding.lease_until for binding in bindings}}
    rows = [(times[until], *place, slot, job_id) for job_id, until, place, slot in bindings]
    if bulk.is_sqlite(session):
        bulk.many(session, _BIND_EACH, rows)
    elif rows:
        bulk.once(session, _BIND_ALL, *map(list, zip(*rows, strict=True)))


def lock_first_waiting(session: Session, task_queue_id: int) -> JobRecord | None:
    """Return the first waiting job of a task queue that no other transaction is claiming, and keep others off it.

    PostgreSQL skips what others have locked, so concurrent requests take different jobs without waiting for one
    another; SQLite has one writer at a time, and nothing to lock.
    """
    return _locked(session, _waiting_in(task_queue_id).order_by(JOBS.c.priority.desc(), JOBS.c.id).limit(1))


def lock_waiting(session: Session, task_queue_id: int, job_id: int) -> JobRecord | None:
    """Return this job, if it waits in the task queue and no other transaction is claiming it, and keep others off."""
    return _locked(session, _waiting_in(task_queue_id).where(JOBS.c.id == job_id))


def _waiting_in(task_queue_id: int) -> Select[Any]:
    return select(JOBS).where(JOBS.c.task_queue_id == task_queue_id, IS_WAITING)


def _locked(session: Session, query: Select[Any]) -> JobRecord | None:
    row = session.execute(query.with_for_update(skip_locked=True)).mappings().first()
    return None if row is None else job_record(row)


_RIVALS = f"""
    SELECT id FROM jobs WHERE {RACING_JOB} AND race IN (SELECT race FROM jobs WHERE id = ANY(?) AND {RACING_JOB})
"""  # noqa: S608 - of our own texts only


def lock_jobs(session: Session, ids: Iterable[int], *, rivals: bool = False) -> None:
    """Let nobody else move these jobs until the transaction ends, nor with `rivals` those that race with them.

    All who move several jobs of others' making take their rows in the order of the ids, so that two of them never
    wait for each other in a circle. SQLite has one writer at a time, and nothing to lock.
    """
    wanted = sorted(set(ids))
    if wanted and not bulk.is_sqlite(session):
        if rivals:
            wanted = sorted({*wanted, *(row[0] for row in bulk.rows(session, _RIVALS, wanted))})
        bulk.once(session, "SELECT id FROM jobs WHERE id = ANY(?) ORDER BY id FOR UPDATE", wanted)


def count_leased(session: Session) -> dict[tuple[QueueId, int], int]:
    """Return how many jobs hold a lease, by the queue where they run and their task queue."""
    columns = (JOBS.c.site, JOBS.c.ce, JOBS.c.queue, JOBS.c.task_queue_id)
    rows = session.execute(select(*columns, func.count()).where(IS_LEASED).group_by(*columns))
    return {(QueueId(site, ce, queue), task_queue_id): jobs for site, ce, queue, task_queue_id, jobs in rows}
