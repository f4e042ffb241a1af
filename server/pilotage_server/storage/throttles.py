"""The throttles of places in the database: one row a place, which servers change only as they have last seen it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from pilotage_server.core.health import Place
from pilotage_server.core.throttles import Throttle, ThrottleState
from pilotage_server.storage import bulk

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
"""Nothing is equal to NULL: a `next_trial` that there is not is compared as `since`, which it never is else."""


def load_throttles(session: Session) -> tuple[Throttle, ...]:
    """Return all throttles, by the keys of their places; also those of places that were opened lately."""
    return tuple(map(_throttle, bulk.rows(session, _LOAD)))


def insert(session: Session, new: Throttle) -> bool:
    """Store the throttle of a place that has none; False = it has one."""
    return bulk.once(session, _INSERT, new.place.key, *_values(session, new)) == 1


def put(session: Session, new: Throttle) -> None:
    """Store the throttle of a place, whatever is stored of it, or is being stored meanwhile."""
    bulk.once(session, _PUT, new.place.key, *_values(session, new))


def change(session: Session, old: Throttle, new: Throttle) -> bool:
    """Store the new throttle in the place of the old one; False = another server was quicker."""
    assert old.judged is not None, "what was stored has been judged"
    times = (bulk.moment(session, time) for time in (old.since, old.judged, old.next_trial or old.since))
    return bulk.once(session, _CHANGE, *_values(session, new), old.place.key, old.state.value, *times) == 1


def remove(session: Session, old: Throttle) -> bool:
    """Forget a throttle; False = it is gone or another one by now."""
    values = old.place.key, old.state.value, bulk.moment(session, old.since)
    return bulk.once(session, _REMOVE, *values) == 1


def claim_trial(session: Session, place: Place, until: datetime, now: datetime) -> bool:
    """Take the trial of a place that is due, and put off the next; False = it is not due, or another has it.

    Nobody waits for whoever is about to take it.
    """
    return bulk.once(session, _CLAIM, bulk.moment(session, until), place.key, bulk.moment(session, now)) == 1


def give_back_trial(session: Session, place: Place, now: datetime) -> None:
    """Let another have a trial for which there was no job."""
    time = bulk.moment(session, now)
    bulk.once(session, _GIVE_BACK, time, place.key, time)


def _values(session: Session, each: Throttle) -> tuple[Any, ...]:
    return (
        each.state.value,
        bulk.moment(session, each.since),
        each.reason,
        each.by,
        each.failures,
        each.ends,
        each.proofs,
        each.pause.total_seconds(),
        each.next_trial and bulk.moment(session, each.next_trial),
        each.judged and bulk.moment(session, each.judged),
    )


def _throttle(row: Sequence[Any]) -> Throttle:
    """Return the throttle of one row of _LOAD."""
    place, state, since, reason, by, failures, ends, proofs, pause_s, next_trial, judged = row
    return Throttle(
        Place.of_key(place),
        ThrottleState(state),
        bulk.time_of(since),
        reason,
        by,
        failures,
        ends,
        proofs,
        timedelta(seconds=pause_s),
        next_trial and bulk.time_of(next_trial),
        judged and bulk.time_of(judged),
    )
