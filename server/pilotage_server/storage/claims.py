"""What a match reads and locks: the job to be claimed, and the running jobs that limits count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.rules import RunningLimit
from pilotage_server.storage.jobs import chunks, job_record
from pilotage_server.storage.tables.conditions import LEASED_JOB
from pilotage_server.storage.task_queues import IS_WAITING, JOBS

IS_LEASED = text(LEASED_JOB)


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
        for chunk in chunks(sorted(set(ids))):
            session.execute(select(JOBS.c.id).where(JOBS.c.id.in_(chunk)).order_by(JOBS.c.id).with_for_update())


def lock_limits(session: Session, limits: Iterable[RunningLimit]) -> None:
    """Let no other transaction count these limits until this one ends, so that their counts stay exact.

    SQLite needs no lock: it has one writer. Keys are taken in one order, so that two matches never wait for each
    other in a circle.
    """
    if session.get_bind().dialect.name == "postgresql":
        for key in sorted(_lock_key(limit) for limit in limits):
            session.execute(select(func.pg_advisory_xact_lock(key)))


def _lock_key(limit: RunningLimit) -> int:
    return int.from_bytes(hashlib.sha256(f"limit {limit}".encode()).digest()[:8], "big", signed=True)


def count_leased(session: Session, queue: QueueId, limit: RunningLimit) -> dict[int, int]:
    """Return the jobs with a lease, by task queue, in that place of the limit in which `queue` lies."""
    query = select(JOBS.c.task_queue_id, func.count()).where(IS_LEASED, JOBS.c.site == queue.site)
    if limit.ce is not None:
        query = query.where(JOBS.c.ce == queue.ce)
    if limit.queue is not None:
        query = query.where(JOBS.c.queue == queue.queue)
    return {row[0]: row[1] for row in session.execute(query.group_by(JOBS.c.task_queue_id))}
