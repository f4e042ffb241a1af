"""Job events in the database: appended in the order of commits, read by job and by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import RowMapping, func, select, text
from sqlmodel import Session

from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.jobs import JOBS
from pilotage_server.storage.tables import metadata

EVENTS = metadata.tables["job_events"]

FEED_LOCK = 0x70696C6F
"""Number of the advisory lock that orders the feed."""


@dataclass(frozen=True, slots=True)
class FeedQuery:
    """Whose events: of (VO, owner), None = of anybody; of these jobs, none named = of any."""

    whose: tuple[str, str] | None = None
    job_ids: tuple[int, ...] = ()


def lock_feed(session: Session) -> None:
    """Let nobody else append events until this transaction has ended.

    PostgreSQL hands out ids when a row is inserted, not when it is committed: without the lock a reader could
    see position 8 and resume after it before 7 appears. SQLite has one writer at a time anyway. The lock is the
    last one that a transaction takes, so waiting for it never closes a circle.
    """
    if not bulk.is_sqlite(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": FEED_LOCK})


def append_events(session: Session, events: Sequence[JobEvent]) -> list[JobEvent]:
    """Store the events in their order and return them with their positions; `lock_feed` comes first."""
    # `_value_`, for many: `value` of an enum is a property, and takes ten times as long
    columns: many_rows.Columns = {
        "job_id": [event.job_id for event in events],
        "time": [event.time for event in events],
        "from_state": [event.from_state._value_ for event in events],
        "to_state": [event.to_state._value_ for event in events],
        "cause": [event.cause._value_ for event in events],
        "reason": [event.reason for event in events],
        "attempt": [event.attempt for event in events],
        "actor": [event.actor for event in events],
    }
    positions = many_rows.add_numbered(session, EVENTS, columns)
    return [event.at(position) for event, position in zip(events, positions, strict=True)]


Alike = tuple[Sequence[int], JobEvent]
"""Jobs that have made a step alike, and the event of the first of them."""


def append_alike(session: Session, alike: Sequence[Alike]) -> list[JobEvent]:
    """Store for each of these jobs an event such as stands beside them, in order.

    Returns
    -------
    list[JobEvent]
        The events that stand there, with their positions.
    """
    columns: dict[str, list[Any]] = {"job_id": [job_id for ids, _ in alike for job_id in ids]}
    for ids, event in alike:
        for name in _KEPT:
            columns.setdefault(name, []).extend([getattr(event, name)] * len(ids))
    positions = many_rows.add_numbered(session, EVENTS, columns)
    begins = accumulate((len(ids) for ids, _ in alike), initial=0)
    return [event.at(positions[begin]) for begin, (_, event) in zip(begins, alike, strict=False)]


_KEPT = ("time", "from_state", "to_state", "cause", "reason", "attempt", "actor")


def append_matches(session: Session, matched: Sequence[Alike]) -> list[JobEvent]:
    """Do so for jobs that were matched, their ids rising, and have the attempts that the events name.

    Who has matched them is told by these attempts.
    """
    return [
        event.at(many_rows.add_numbered_for(session, _MATCHES, (event.attempt,), job_ids)[0])
        for job_ids, event in matched
    ]


_MATCHES = """
    INSERT INTO job_events (job_id, time, from_state, to_state, cause, reason, attempt, actor)
    SELECT job_id, matched, 'WAITING', 'MATCHED', 'matched', '', attempt, 'pilot:' || pilot_stamp
    FROM attempts WHERE attempt = ? AND job_id = ANY(?) ORDER BY job_id
"""


def job_event(row: RowMapping) -> JobEvent:
    """Return the event of one row of `job_events`."""
    return JobEvent(
        position=row["id"],
        job_id=row["job_id"],
        time=row["time"],
        from_state=JobState(row["from_state"]),
        to_state=JobState(row["to_state"]),
        cause=JobCause(row["cause"]),
        reason=row["reason"],
        attempt=row["attempt"],
        actor=row["actor"],
    )


def events_of(session: Session, job_id: int) -> tuple[JobEvent, ...]:
    """Return the events of one job, oldest first."""
    query = select(EVENTS).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id)
    return tuple(job_event(row) for row in session.execute(query).mappings())


_LAST_AT = "SELECT job_id, max(attempt) FROM job_events WHERE job_id = ANY(?) AND cause = ANY(?) GROUP BY job_id"


def last_attempts_at(session: Session, job_ids: Iterable[int], causes: Iterable[JobCause]) -> dict[int, int]:
    """Return the last attempt that each of these jobs had had at a step of such a cause; without any it is left out."""
    return dict(bulk.rows(session, _LAST_AT, sorted(job_ids), sorted(causes)))


def feed_bounds(session: Session) -> tuple[int, int]:
    """Return the positions of the oldest and the newest event; (0, 0) where there is none."""
    oldest, newest = session.execute(select(func.min(EVENTS.c.id), func.max(EVENTS.c.id))).one()
    return oldest or 0, newest or 0


def events_between(session: Session, after: int, up_to: int, wanted: FeedQuery, limit: int) -> tuple[JobEvent, ...]:
    """Return at most `limit` events with after < position ≤ up_to, oldest first."""
    query = select(EVENTS).where(EVENTS.c.id > after, EVENTS.c.id <= up_to)
    if wanted.job_ids:
        query = query.where(EVENTS.c.job_id.in_(wanted.job_ids))
    if wanted.whose is not None:
        vo, owner = wanted.whose
        query = query.join(JOBS, JOBS.c.id == EVENTS.c.job_id).where(JOBS.c.vo == vo, JOBS.c.owner == owner)
    rows = session.execute(query.order_by(EVENTS.c.id).limit(limit)).mappings()
    return tuple(job_event(row) for row in rows)
