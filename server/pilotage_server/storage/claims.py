"""What a match reads, locks and writes: the jobs to be claimed, and the jobs that hold leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, text
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.waiting import Head
from pilotage_server.storage import bulk
from pilotage_server.storage.jobs import job_record
from pilotage_server.storage.tables.conditions import LEASED_JOB, WAITING_JOB
from pilotage_server.storage.task_queues import IS_WAITING, JOBS

IS_LEASED = text(LEASED_JOB)


class Waiting(NamedTuple):
    """What a match needs to know of a job that waits and is locked: nobody else claims it."""

    id: int
    template_id: int
    cluster: int
    process: int
    owner: str
    vo: str
    group: str
    attempt: int
    lease_s: float
    watch: int

    @property
    def lease(self) -> timedelta | None:
        """The length of the lease that its owner asked for, None = the server's."""
        return timedelta(seconds=self.lease_s) if self.lease_s else None


class Binding(NamedTuple):
    """A waiting job that is bound to a slot: until when, and where."""

    job: Waiting
    lease_until: datetime
    pilot_stamp: str
    queue: QueueId
    node: str
    slot: str


_COLUMNS = 'id, template_id, cluster, process, owner, vo, "group", attempt, lease_s, watch'
_LOCK = "FOR UPDATE SKIP LOCKED"


def _first(columns: str, lock: str = "") -> str:
    """Return the statement that gives the first waiting jobs of a task queue."""
    which = f"task_queue_id = ? AND {WAITING_JOB}"
    return f"SELECT {columns} FROM jobs WHERE {which} ORDER BY priority DESC, id LIMIT ? {lock}"  # noqa: S608


def _first_of_many(columns: str, lock: str = "") -> str:
    """Return the statement that does so for many task queues, and gives the task queue's id before the columns."""
    first = _first(columns, lock).replace("= ?", "= wanted.id", 1).replace("LIMIT ?", "LIMIT wanted.most")
    wanted = "unnest(?::bigint[], ?::int[]) AS wanted (id, most)"
    return f"SELECT wanted.id, found.* FROM {wanted} CROSS JOIN LATERAL ({first}) AS found"  # noqa: S608


_LOCK_FIRST, _LOCK_OF_MANY = _first(_COLUMNS, _LOCK), _first_of_many(_COLUMNS, _LOCK)
_HEADS, _HEADS_OF_MANY = _first("priority, id"), _first_of_many("priority, id")
_BIND = """
    UPDATE jobs SET state = 'MATCHED', reason = '', attempt = attempt + 1, lease_until = ?, pilot_stamp = ?,
        site = ?, ce = ?, queue = ?, node = ?, slot = ?, started = NULL, exit_code = NULL, signal = NULL
    WHERE id = ?
"""


def lock_first(session: Session, wanted: Mapping[int, int]) -> dict[int, list[Waiting]]:
    """Return the first waiting jobs of task queues, of each as many as are wanted or as there are, and keep others off.

    PostgreSQL skips what others have locked, so concurrent requests take different jobs without waiting for one
    another; SQLite has one writer at a time, and nothing to lock.
    """
    if session.get_bind().dialect.name == "sqlite":
        found = ((each, bulk.rows(session, _LOCK_FIRST, each, most)) for each, most in wanted.items())
        return {task_queue_id: [Waiting(*row) for row in rows] for task_queue_id, rows in found}
    jobs: dict[int, list[Waiting]] = {}
    for task_queue_id, *row in bulk.rows(session, _LOCK_OF_MANY, list(wanted), list(wanted.values())):
        jobs.setdefault(task_queue_id, []).append(Waiting(*row))
    return jobs


def read_first_waiting(session: Session, wanted: Mapping[int, int]) -> dict[int, list[Head]]:
    """Return the first waiting jobs of task queues, of each as many as are wanted or as there are; none is locked."""
    if session.get_bind().dialect.name == "sqlite":
        found = ((each, bulk.rows(session, _HEADS, each, most)) for each, most in wanted.items())
        return {task_queue_id: [Head(*row) for row in rows] for task_queue_id, rows in found}
    heads: dict[int, list[Head]] = {}
    for task_queue_id, *row in bulk.rows(session, _HEADS_OF_MANY, list(wanted), list(wanted.values())):
        heads.setdefault(task_queue_id, []).append(Head(*row))
    return heads


def bind(session: Session, bindings: Sequence[Binding]) -> None:
    """Bind locked jobs to slots: what `stepped` makes of a job that is matched."""
    times: dict[datetime, Any] = {}
    rows: list[bulk.Values] = []
    for job, until, stamp, queue, node, slot in bindings:
        time = times.get(until) or times.setdefault(until, bulk.moment(session, until))
        rows.append((time, stamp, queue.site, queue.ce, queue.queue, node, slot, job.id))
    bulk.many(session, _BIND, rows)


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


def lock_jobs(session: Session, ids: Iterable[int]) -> None:
    """Let nobody else move these jobs until the transaction ends.

    All who move several jobs of others' making take their rows in the order of the ids, so that two of them never
    wait for each other in a circle. SQLite has one writer at a time, and nothing to lock.
    """
    if session.get_bind().dialect.name == "postgresql":
        bulk.once(session, "SELECT id FROM jobs WHERE id = ANY(?) ORDER BY id FOR UPDATE", sorted(set(ids)))


def count_leased(session: Session) -> dict[tuple[QueueId, int], int]:
    """Return how many jobs hold a lease, by the queue where they run and their task queue."""
    columns = (JOBS.c.site, JOBS.c.ce, JOBS.c.queue, JOBS.c.task_queue_id)
    rows = session.execute(select(*columns, func.count()).where(IS_LEASED).group_by(*columns))
    return {(QueueId(site, ce, queue), task_queue_id): jobs for site, ce, queue, task_queue_id, jobs in rows}
