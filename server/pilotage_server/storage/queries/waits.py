"""How long jobs have waited that started lately, read from bounded numbers of recent rows.

No index serves a pool's past, and one would cost every start. So the newest jobs of the owner, the jobs with the newest
leases, and the jobs that ended last are looked through.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session

from pilotage_server.core.queueing.task_queue import TaskQueue, Traits, task_queue_key
from pilotage_server.storage.database import sql

MOST_ROWS = 5000
"""Rows that are looked at in each of the three places."""

MOST_JOBS = 500
"""Jobs whose events are read."""

_RECENT = """
    SELECT id, task_queue_id FROM (
        SELECT id, task_queue_id, vo, pool_id, started FROM jobs WHERE {} ORDER BY {} DESC LIMIT ?
    ) AS newest WHERE vo = ? AND pool_id = ? AND started >= ? LIMIT ?
"""
_PLACES = {
    "owner": _RECENT.format("owner = ?", "id"),
    "leases": _RECENT.format("lease_until IS NOT NULL", "lease_until"),
    "ends": _RECENT.format("ended IS NOT NULL", "ended"),
}
_EVENTS = """
    SELECT job_id, time, to_state FROM job_events WHERE job_id = ANY(?) AND to_state = ANY(?) ORDER BY id
"""
_BY_KEY = "SELECT id FROM task_queues WHERE key = ?"
_STATES = ["RUNNING", "WAITING"]


class RecentWaits(NamedTuple):
    """The waits in seconds before recent starts: of jobs like this one of its owner, and of all jobs of its pool."""

    of_task_queue: list[float]
    of_pool: list[float]


def recent_waits(session: Session, task_queue: TaskQueue, since: datetime) -> RecentWaits:
    """Return the waits of jobs that started at `since` or later, from the last WAITING to RUNNING."""
    queues: dict[int, int] = {}
    for place in _PLACES:
        queues |= recent_jobs(session, place, task_queue.traits, since)
    alike: list[float] = []
    others: list[float] = []
    for job_id, wait_s in _waits(session, queues, since):
        (alike if queues[job_id] == task_queue.id else others).append(wait_s)
    return RecentWaits(alike, alike + others)


def recent_jobs(session: Session, place: str, traits: Traits, since: datetime) -> dict[int, int]:
    """Return the jobs of the same pool that started at `since` or later, with their task queues.

    `place` = where to look: among the newest jobs of the "owner", the newest "leases", or the newest "ends".
    """
    of_pool = (traits.account.vo, traits.pool_id, sql.column_time(session, since), MOST_JOBS)
    owner = (traits.account.owner,) if place == "owner" else ()
    return dict(map(tuple, sql.rows(session, _PLACES[place], *owner, MOST_ROWS, *of_pool)))


def _waits(session: Session, job_ids: Iterable[int], since: datetime) -> list[tuple[int, float]]:
    waiting_since: dict[int, datetime] = {}
    waits: list[tuple[int, float]] = []
    for job_id, at, state in sql.rows(session, _EVENTS, sorted(job_ids), _STATES):
        time = sql.utc_time(at)
        if state == "WAITING":
            waiting_since[job_id] = time
        elif job_id in waiting_since:
            began = waiting_since.pop(job_id)
            if time >= since:
                waits.append((job_id, (time - began).total_seconds()))
    return waits


def task_queue_id(session: Session, traits: Traits) -> int:
    """Return the id of the task queue with these traits; 0 = there is none."""
    found = sql.rows(session, _BY_KEY, task_queue_key(traits))
    return int(found[0][0]) if found else 0
