"""Subscriptions in the database, and what they are compared with: events from a position, and jobs that are live."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage_server.core.jobs.notifications import JobOccurrence, Subscription
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import (
    CLOSED_SUBSCRIPTION,
    LIVE_JOB,
    OPEN_SUBSCRIPTION,
    UNDELIVERED,
    metadata,
)

SUBSCRIPTIONS = metadata.tables["subscriptions"]
CURSOR = metadata.tables["notification_cursor"]

_COLUMNS = """
    id, vo, owner, first, last, kind, address, secret, occasions_json, created, position, left_json, check_end, closed
"""


def insert_subscriptions(session: Session, new: Sequence[Subscription]) -> list[int]:
    """Store subscriptions and return their ids, in order."""
    columns: sql.Columns = {
        **{name: [getattr(each, name) for each in new] for name in ("vo", "owner", "first", "last", "created")},
        **{name: [getattr(each, name) for each in new] for name in ("position", "check_end")},
        "kind": [each.wanted.kind.value for each in new],
        "address": [each.wanted.address for each in new],
        "host": [each.wanted.host or f"({each.wanted.kind})" for each in new],
        "secret": [each.wanted.secret for each in new],
        "occasions_json": [_occasions_json(each.wanted.occasions) for each in new],
        "left_json": [_occasions_json(each.left) for each in new],
    }
    return list(sql.insert_numbered_rows(session, SUBSCRIPTIONS, columns))


def _occasions_json(occasions: Collection[Occasion]) -> str:
    return json.dumps(sorted(occasions))


@lru_cache(maxsize=64)
def _occasions(text: str) -> frozenset[Occasion]:
    return frozenset(map(Occasion, json.loads(text)))


def _subscription(row: Sequence[Any]) -> Subscription:
    id_, vo, owner, first, last, kind, address, secret, occasions, created, position, left, check_end, closed = row
    wanted = NewSubscription(RecipientKind(kind), address, _occasions(occasions), secret)
    return Subscription(
        id=id_,
        vo=vo,
        owner=owner,
        first=first,
        last=last,
        wanted=wanted,
        created=sql.utc_time(created),
        position=position,
        left=_occasions(left),
        check_end=check_end and sql.utc_time(check_end),
        closed=closed and sql.utc_time(closed),
    )


_COUNT_OPEN = f"SELECT count(*) FROM subscriptions WHERE vo = ? AND owner = ? AND {OPEN_SUBSCRIPTION}"  # noqa: S608
_OPEN = f"SELECT {_COLUMNS} FROM subscriptions WHERE {OPEN_SUBSCRIPTION} ORDER BY id"  # noqa: S608 - names of ours
_LOCK_OPEN = f"""
    SELECT {_COLUMNS} FROM subscriptions WHERE id = ANY(?) AND {OPEN_SUBSCRIPTION} ORDER BY id FOR UPDATE
"""  # noqa: S608 - names of ours
_WORK = f"SELECT min(position), min(check_end) FROM subscriptions WHERE {OPEN_SUBSCRIPTION}"  # noqa: S608


def count_open(session: Session, vo: str, owner: str) -> int:
    """Return the number of open subscriptions of an owner."""
    ((count,),) = sql.rows(session, _COUNT_OPEN, vo, owner)
    return int(count)


def load_open(session: Session) -> list[Subscription]:
    """Return all open subscriptions."""
    return [_subscription(row) for row in sql.rows(session, _OPEN)]


def lock_open(session: Session, ids: Collection[int]) -> list[Subscription]:
    """Return those of the subscriptions that are still open, and lock them: no concurrent call can remove them."""
    return [_subscription(row) for row in sql.rows(session, _LOCK_OPEN, sorted(ids))] if ids else []


def update_subscriptions(session: Session, changed: Sequence[Subscription]) -> None:
    """Store what is left of subscriptions, their positions, and when their ends are checked."""
    to: sql.Columns = {
        "position": [each.position for each in changed],
        "left_json": [_occasions_json(each.left) for each in changed],
        "check_end": [each.check_end for each in changed],
        "closed": [each.closed for each in changed],
    }
    if changed:
        sql.update_rows(session, SUBSCRIPTIONS, {"id": [each.id for each in changed]}, to)


def find_subscriptions(
    session: Session, vo: str | None, owner: str | None, jobs: Sequence[range], most: int
) -> list[Subscription]:
    """Return the newest subscriptions of an owner, None = any, that have one of the jobs, empty = any."""
    given = {"vo = ?": vo, "owner = ?": owner}
    conditions = [condition for condition, value in given.items() if value is not None]
    values: list[object] = [value for value in given.values() if value is not None]
    if jobs:
        conditions.append("(" + " OR ".join("(first <= ? AND last >= ?)" for _ in jobs) + ")")
        values += (bound for each in jobs for bound in (each[-1], each[0]))
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "owner DESC, id DESC" if owner is not None else "id DESC"
    statement = f"SELECT {_COLUMNS} FROM subscriptions {where} ORDER BY {order} LIMIT ?"  # noqa: S608 - names of ours
    return [_subscription(row) for row in sql.rows(session, statement, *values, most)]


_OWNERS = "SELECT id, vo, owner FROM subscriptions WHERE id = ANY(?) ORDER BY id FOR UPDATE"


def lock_owners(session: Session, ids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Lock those of the subscriptions that exist, and return the VO and the owner of each."""
    return {id_: (vo, owner) for id_, vo, owner in sql.rows(session, _OWNERS, sorted(ids))}


def delete_subscriptions(session: Session, ids: Sequence[int]) -> None:
    """Remove subscriptions with their notifications."""
    sql.execute(session, "DELETE FROM subscriptions WHERE id = ANY(?)", list(ids))
    sql.execute(session, "DELETE FROM notifications WHERE subscription = ANY(?)", list(ids))


_OLD = f"""
    SELECT id FROM subscriptions WHERE {CLOSED_SUBSCRIPTION} AND closed < ?
    AND NOT EXISTS (SELECT 1 FROM notifications WHERE subscription = subscriptions.id AND {UNDELIVERED})
    ORDER BY closed LIMIT ?
"""  # noqa: S608 - conditions of ours


def delete_closed_subscriptions(session: Session, before: datetime, limit: int) -> int:
    """Remove at most `limit` subscriptions that closed earlier, with their notifications; return how many."""
    ids = [id_ for (id_,) in sql.rows(session, _OLD, sql.column_time(session, before), limit)]
    if ids:
        delete_subscriptions(session, ids)
    return len(ids)


class SubscriptionWork(NamedTuple):
    """What open subscriptions wait for: events after `position`, and the check of an end at `check_end`, None = no.

    `cursor` = the position up to which events have been examined. It rests while no subscription is open: what came
    before the oldest of the open ones concerns none.
    """

    cursor: int
    position: int
    check_end: datetime | None


def find_work(session: Session) -> SubscriptionWork | None:
    """Return the work; None = no subscription is open."""
    ((position, check_end),) = sql.rows(session, _WORK)
    if position is None:
        return None
    cursor = sum(each for (each,) in sql.rows(session, "SELECT position FROM notification_cursor WHERE id = 1"))
    return SubscriptionWork(cursor, max(position, cursor), check_end and sql.utc_time(check_end))


_SWAP = "UPDATE notification_cursor SET position = ? WHERE id = 1 AND position = ?"


def swap_cursor(session: Session, old: int, new: int) -> bool:
    """Move the cursor, and lock it until the transaction ends; False = another transaction has moved it."""
    if not old:
        sql.insert_if_absent(session, CURSOR, {"id": 1, "position": 0})
    return sql.execute(session, _SWAP, new, old) == 1


def newest_position(session: Session) -> int:
    """Return the position of the newest event; 0 = there is none."""
    ((position,),) = sql.rows(session, "SELECT max(id) FROM job_events")
    return position or 0


_OCCURRENCES = """
    SELECT id, job_id, to_state, actor, reason FROM job_events
    WHERE id > ? AND id <= ? AND to_state = ANY(?) AND from_state <> to_state
"""
_OCCURRING = sorted(state.value for state in FINAL | {JobState.HELD})


def occurrences_between(session: Session, after: int, up_to: int) -> list[JobOccurrence]:
    """Return the ends and holds of jobs at after < position ≤ up_to."""
    return [
        JobOccurrence(position, job_id, JobState(state), actor, reason)
        for position, job_id, state, actor, reason in sql.rows(session, _OCCURRENCES, after, up_to, _OCCURRING)
    ]


# The order names the columns of the index of live jobs, so that planners use it.
_LIVE_JOBS = f"FROM jobs WHERE vo = ? AND owner = ? AND id BETWEEN ? AND ? AND {LIVE_JOB}"
_MOVING = f"SELECT id {_LIVE_JOBS} AND state <> 'BLOCKED' ORDER BY vo, owner, id LIMIT 1"
_BLOCKS = f"SELECT DISTINCT blocked_by {_LIVE_JOBS}"


def has_moving_job(session: Session, of: Subscription) -> bool:
    """Whether a job of the subscription is live and not blocked."""
    return bool(sql.rows(session, _MOVING, of.vo, of.owner, of.first, of.last))


def live_blocks(session: Session, of: Subscription) -> list[int]:
    """Return the blocks of the live jobs of the subscription, of which none moves."""
    return [block for (block,) in sql.rows(session, _BLOCKS, of.vo, of.owner, of.first, of.last)]
