"""Throttles (circuit breakers) in the database: one row for each location, changed by compare-and-set only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from pilotage_server.core.health.black_holes import Location
from pilotage_server.core.health.throttles import Throttle, ThrottleState
from pilotage_server.storage.database import sql

_COLUMNS = "state, since, reason, ordered_by, failures, ends, proofs, pause_s, next_trial, judged"
_LOAD = f"SELECT place, {_COLUMNS} FROM throttles ORDER BY place"  # noqa: S608 - names of columns
_INSERT = f"""
    INSERT INTO throttles (place, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (place) DO NOTHING
"""  # noqa: S608
_PUT = _INSERT.replace(
    "NOTHING", f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS.split(', '))}"
)
_REMOVE = "DELETE FROM throttles WHERE place = ? AND state = ? AND since = ?"
_CLAIM = """
    UPDATE throttles SET next_trial = ?, state = 'throttled' WHERE place = (
        SELECT place FROM throttles WHERE place = ? AND state <> 'opened' AND next_trial <= ? FOR UPDATE SKIP LOCKED
    )
"""
_GIVE_BACK = "UPDATE throttles SET next_trial = ? WHERE place = ? AND next_trial > ?"
_CHANGE = """
    UPDATE throttles SET state = ?, since = ?, reason = ?, ordered_by = ?, failures = ?, ends = ?, proofs = ?,
        pause_s = ?, next_trial = ?, judged = ?
    WHERE place = ? AND state = ? AND since = ? AND judged = ? AND coalesce(next_trial, since) = ?
"""
"""NULL equals nothing, so a missing `next_trial` is compared as `since`, a value that it never has otherwise."""


def load_throttles(session: Session) -> tuple[Throttle, ...]:
    """Return all throttles by the keys of their locations, also those that were opened recently."""
    return tuple(map(_throttle, sql.rows(session, _LOAD)))


def insert(session: Session, new: Throttle) -> bool:
    """Store the throttle of a location without one; False = it has one."""
    return sql.execute(session, _INSERT, new.location.key, *_values(session, new)) == 1


def put(session: Session, new: Throttle) -> None:
    """Store the throttle of a location unconditionally."""
    sql.execute(session, _PUT, new.location.key, *_values(session, new))


def change(session: Session, old: Throttle, new: Throttle) -> bool:
    """Replace a throttle; False = another server has changed it meanwhile."""
    assert old.judged is not None, "what was stored has been judged"
    times = (sql.column_time(session, time) for time in (old.since, old.judged, old.next_trial or old.since))
    return sql.execute(session, _CHANGE, *_values(session, new), old.location.key, old.state.value, *times) == 1


def remove(session: Session, old: Throttle) -> bool:
    """Remove a throttle; False = it is gone or has changed."""
    values = old.location.key, old.state.value, sql.column_time(session, old.since)
    return sql.execute(session, _REMOVE, *values) == 1


def claim_trial(session: Session, location: Location, until: datetime, now: datetime) -> bool:
    """Reserve the probe of a location if it is due, and put off the next one; False = not due, or taken.

    A locked row is skipped, so this never waits.
    """
    return (
        sql.execute(session, _CLAIM, sql.column_time(session, until), location.key, sql.column_time(session, now)) == 1
    )


def give_back_trial(session: Session, location: Location, now: datetime) -> None:
    """Return an unused probe, so that it is due again."""
    time = sql.column_time(session, now)
    sql.execute(session, _GIVE_BACK, time, location.key, time)


def _values(session: Session, each: Throttle) -> tuple[Any, ...]:
    return (
        each.state.value,
        sql.column_time(session, each.since),
        each.reason,
        each.by,
        each.failures,
        each.ends,
        each.proofs,
        each.pause.total_seconds(),
        each.next_trial and sql.column_time(session, each.next_trial),
        each.judged and sql.column_time(session, each.judged),
    )


def _throttle(row: Sequence[Any]) -> Throttle:
    """Return the throttle of one row of _LOAD."""
    key, state, since, reason, by, failures, ends, proofs, pause_s, next_trial, judged = row
    return Throttle(
        Location.from_key(key),
        ThrottleState(state),
        sql.utc_time(since),
        reason,
        by,
        failures,
        ends,
        proofs,
        timedelta(seconds=pause_s),
        next_trial and sql.utc_time(next_trial),
        judged and sql.utc_time(judged),
    )
