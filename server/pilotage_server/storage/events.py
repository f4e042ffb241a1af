"""The feed: events of jobs in the database, appended in the order of commits, read by job and by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, and_, func, or_, select, text
from sqlmodel import Session

from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import FINAL, JobCause, JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.jobs import JOBS

EVENTS = metadata.tables["job_events"]

FEED_LOCK = 0x70696C6F
"""Number of the advisory lock that orders the feed."""


@dataclass(frozen=True, slots=True)
class FeedQuery:
    """A query of events: `whose` = (VO, owner), None = any; `vos` empty = any.

    Those of jobs in `job_ids` or in the `runs` of ids; both empty = of any jobs.
    """

    whose: tuple[str, str] | None = None
    job_ids: tuple[int, ...] = ()
    runs: tuple[range, ...] = ()
    vos: tuple[str, ...] = ()


def lock_feed(session: Session) -> None:
    """Lock the feed until the transaction ends.

    PostgreSQL assigns ids when a row is inserted, not when it is committed: without the lock a reader could see
    position 8 and resume after it before 7 appears. SQLite has one writer at a time. The lock is the last one that a
    transaction takes, so that waiting for it never closes a circle.
    """
    if not sql.is_sqlite(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": FEED_LOCK})


def append_events(session: Session, events: Sequence[FeedEvent]) -> list[FeedEvent]:
    """Store the events in their order and return them with their positions; `lock_feed` comes first."""
    # `_value_`, for many: `value` of an enum is a property, and takes ten times as long
    columns: sql.Columns = {
        "job_id": [event.job_id for event in events],
        "time": [event.time for event in events],
        "from_state": [event.from_state._value_ for event in events],
        "to_state": [event.to_state._value_ for event in events],
        "cause": [event.cause._value_ for event in events],
        "reason": [event.reason for event in events],
        "attempt": [event.attempt for event in events],
        "actor": [event.actor for event in events],
    }
    positions = sql.insert_numbered_rows(session, EVENTS, columns)
    return [event.at(position) for event, position in zip(events, positions, strict=True)]


UniformEvents = tuple[Sequence[int], FeedEvent]
"""Jobs that have made the same transition, and the event of the first one."""


def append_uniform(session: Session, alike: Sequence[UniformEvents]) -> list[FeedEvent]:
    """Store for each of these jobs an event like the given one, in order.

    Returns
    -------
    list[JobEvent]
        The given events with their positions.
    """
    columns: dict[str, list[Any]] = {"job_id": [job_id for ids, _ in alike for job_id in ids]}
    for ids, event in alike:
        for name in _KEPT:
            columns.setdefault(name, []).extend([getattr(event, name)] * len(ids))
    positions = sql.insert_numbered_rows(session, EVENTS, columns)
    begins = accumulate((len(ids) for ids, _ in alike), initial=0)
    return [event.at(positions[begin]) for begin, (_, event) in zip(begins, alike, strict=False)]


_KEPT = ("time", "from_state", "to_state", "cause", "reason", "attempt", "actor")


def append_matches(session: Session, matched: Sequence[UniformEvents]) -> list[FeedEvent]:
    """Store the events of matched jobs, in ascending order of ids; their attempts, which the events name, are stored.

    The actors of the events are the pilots of these attempts.
    """
    return [
        event.at(sql.insert_numbered_for_ids(session, _MATCHES, (event.attempt,), job_ids)[0])
        for job_ids, event in matched
    ]


_MATCHES = """
    INSERT INTO job_events (job_id, time, from_state, to_state, cause, reason, attempt, actor)
    SELECT job_id, matched, 'WAITING', 'MATCHED', 'matched', '', attempt, 'pilot:' || pilot_stamp
    FROM attempts WHERE attempt = ? AND job_id = ANY(?) ORDER BY job_id
"""


def job_event(row: RowMapping) -> FeedEvent:
    """Return the event of one row of `job_events`."""
    return FeedEvent(
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


def events_of(session: Session, job_id: int) -> tuple[FeedEvent, ...]:
    """Return the events of one job, oldest first."""
    query = select(EVENTS).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id)
    return tuple(job_event(row) for row in session.execute(query).mappings())


_LAST_AT = "SELECT job_id, max(attempt) FROM job_events WHERE job_id = ANY(?) AND cause = ANY(?) GROUP BY job_id"


def last_attempts_at(session: Session, job_ids: Iterable[int], causes: Iterable[JobCause]) -> dict[int, int]:
    """Return for each of these jobs the attempt of its last event with such a cause; jobs without one are left out."""
    return dict(sql.rows(session, _LAST_AT, sorted(job_ids), sorted(causes)))


# Each in a query of its own: SQLite reads the whole table for both at once.
_BOUNDS = "SELECT (SELECT min(id) FROM job_events), (SELECT max(id) FROM job_events)"


def feed_bounds(session: Session) -> tuple[int, int]:
    """Return the positions of the oldest and the newest event; (0, 0) where there is none."""
    ((oldest, newest),) = sql.rows(session, _BOUNDS)
    return oldest or 0, newest or 0


def first_after(session: Session, position: int) -> int | None:
    """Return the position of the first event after this one, across gaps; None = there is none."""
    ((first,),) = sql.rows(session, "SELECT min(id) FROM job_events WHERE id > ?", position)
    return None if first is None else int(first)


def events_between(session: Session, after: int, up_to: int, wanted: FeedQuery, limit: int) -> tuple[FeedEvent, ...]:
    """Return at most `limit` events with after < position ≤ up_to, oldest first."""
    query = select(EVENTS).where(EVENTS.c.id > after, EVENTS.c.id <= up_to)
    of_jobs: list[ColumnElement[bool]] = [EVENTS.c.job_id.between(run[0], run[-1]) for run in wanted.runs]
    if wanted.job_ids:
        of_jobs.append(one_of(EVENTS.c.job_id, wanted.job_ids))
    if of_jobs:
        query = query.where(or_(*of_jobs))
    visible: list[ColumnElement[bool]] = []
    if wanted.whose is not None:
        vo, owner = wanted.whose
        visible += (JOBS.c.vo == vo, JOBS.c.owner == owner)
    if wanted.vos:
        visible.append(one_of(func.lower(JOBS.c.vo), [vo.lower() for vo in wanted.vos]))
    if visible:
        # A scalar subquery runs row by row. PostgreSQL may read all jobs of the owner for each event of a join: after
        # a long submission its statistics are old.
        job = select(and_(*visible)).where(JOBS.c.id == EVENTS.c.job_id)
        query = query.where(job.scalar_subquery())
    rows = session.execute(query.order_by(EVENTS.c.id).limit(limit)).mappings()
    return tuple(job_event(row) for row in rows)


def owners_between(session: Session, after: int, up_to: int) -> list[tuple[str, str]]:
    """Return VO and owner of the jobs with events at after < position ≤ up_to, each once."""
    return [(vo, owner) for vo, owner in sql.rows(session, _OWNERS, after, up_to)]


_OWNERS = """
    SELECT DISTINCT job.vo, job.owner FROM job_events AS event JOIN jobs AS job ON job.id = event.job_id
    WHERE event.id > ? AND event.id <= ?
"""


def ended_between(session: Session, after: int, up_to: int) -> list[int]:
    """Return the jobs that have got a final state at after < position ≤ up_to."""
    return [job_id for (job_id,) in sql.rows(session, _ENDED, after, up_to, sorted(FINAL))]


_ENDED = "SELECT DISTINCT job_id FROM job_events WHERE id > ? AND id <= ? AND to_state = ANY(?)"


class QueueChange(NamedTuple):
    """A job that began (`came`) or ceased to wait; its task queue is the present one."""

    came: bool
    job_id: int
    task_queue_id: int
    priority: int


def queue_changes_in(session: Session, ranges: Sequence[tuple[int, int]]) -> list[QueueChange]:
    """Return the jobs that began or ceased to wait in these ranges of the feed, both ends included, in order.

    A fenced job counts as waiting. PostgreSQL only, where servers share a database.
    """
    bounds = {"first": [first for first, _ in ranges], "last": [last for _, last in ranges]}
    return [QueueChange._make(row) for row in session.execute(_TURNOVER, bounds)]


_TURNOVER = text("""
    SELECT event.to_state = 'WAITING', event.job_id, job.task_queue_id, job.priority
    FROM unnest(CAST(:first AS bigint[]), CAST(:last AS bigint[])) AS ranges(first, last)
    JOIN job_events AS event ON event.id BETWEEN ranges.first AND ranges.last
    JOIN jobs AS job ON job.id = event.job_id
    WHERE (event.from_state = 'WAITING') <> (event.to_state = 'WAITING')
    ORDER BY event.id
""")
