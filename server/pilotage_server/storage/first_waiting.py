"""The jobs that go first in task queues: read in advance, or locked to be claimed, of many task queues at once.

Rules
-----
First goes the higher priority, then who came first; the index on waiting jobs has that order. PostgreSQL finds those
of all task queues in one statement and skips what others have locked, so that concurrent matches take different jobs
without waiting for one another. SQLite, which has one writer at a time, is asked for one task queue after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import starmap
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage_server.core.waiting import Head
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import WAITING_JOB


class Waiting(NamedTuple):
    """What a match needs to know of a job that waits and is locked: nobody else claims it."""

    id: int
    template_id: int
    cluster: int
    process: int
    attempt: int
    lease_s: float
    watch: int

    @property
    def lease(self) -> timedelta | None:
        """The length of the lease that its owner asked for, None = the server's."""
        return timedelta(seconds=self.lease_s) if self.lease_s else None


_COLUMNS = ", ".join(Waiting._fields)


def _first(columns: str, lock: str = "") -> str:
    """Return the statement that gives the first waiting jobs of a task queue."""
    which = f"task_queue_id = ? AND {WAITING_JOB}"
    return f"SELECT {columns} FROM jobs WHERE {which} ORDER BY priority DESC, id LIMIT ? {lock}"  # noqa: S608


def _of_many(first: str) -> str:
    """Return the statement that does so for many task queues, and gives the task queue's id before the columns."""
    first = first.replace("= ?", "= wanted.id", 1).replace("LIMIT ?", "LIMIT wanted.most")
    wanted = "unnest(?::bigint[], ?::int[]) AS wanted (id, most)"
    return f"SELECT wanted.id, found.* FROM {wanted} CROSS JOIN LATERAL ({first}) AS found"  # noqa: S608


_TO_CLAIM = _first(_COLUMNS, "FOR UPDATE SKIP LOCKED")
_HEADS = _first("priority, id")
_AT_ONCE = {first: _of_many(first) for first in (_TO_CLAIM, _HEADS)}


def read_first_waiting(session: Session, wanted: Mapping[int, int]) -> dict[int, list[Head]]:
    """Return the first waiting jobs of task queues, of each as many as are wanted or as there are; none is locked."""
    found = _found(session, _HEADS, wanted)
    return {task_queue_id: list(starmap(Head, rows)) for task_queue_id, rows in found.items()}


def lock_first(session: Session, wanted: Mapping[int, int]) -> dict[int, list[Waiting]]:
    """Return the same with what a match needs to know of the jobs, and keep others off them."""
    found = _found(session, _TO_CLAIM, wanted)
    return {task_queue_id: list(starmap(Waiting, rows)) for task_queue_id, rows in found.items()}


def read_heads(session: Session, ids: Iterable[int]) -> dict[int, Head]:
    """Return the first waiting job of each of the task queues in which any waits."""
    found = read_first_waiting(session, dict.fromkeys(ids, 1))
    return {task_queue_id: heads[0] for task_queue_id, heads in found.items() if heads}


def _found(session: Session, first: str, wanted: Mapping[int, int]) -> dict[int, list[tuple[Any, ...]]]:
    if bulk.is_sqlite(session):
        return {each: list(bulk.rows(session, first, each, most)) for each, most in wanted.items()}
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for task_queue_id, *row in bulk.rows(session, _AT_ONCE[first], list(wanted), list(wanted.values())):
        rows.setdefault(task_queue_id, []).append(tuple(row))
    return rows
