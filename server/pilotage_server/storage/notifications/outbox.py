"""Notifications in the database, from the event that made them to their delivery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session

from pilotage.notifications import Occasion, RecipientKind
from pilotage_server.core.jobs.notifications import MOST_LEASED
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import UNDELIVERED, metadata

NOTIFICATIONS = metadata.tables["notifications"]


class NewNotification(NamedTuple):
    """A notification of a subscription with its body."""

    subscription: int
    occasion: Occasion
    body: str


class NotificationRecord(NamedTuple):
    """A notification of a subscription; `due` None = it is delivered, or given up."""

    id: int
    subscription: int
    occasion: Occasion
    body: str
    made: datetime
    tries: int
    error: str
    due: datetime | None
    delivered: datetime | None


class LeasedNotification(NamedTuple):
    """A notification that is leased, with the recipient and the secret of its subscription."""

    id: int
    kind: RecipientKind
    address: str
    secret: str
    body: str
    tries: int


def insert_notifications(session: Session, new: Sequence[NewNotification], now: datetime) -> None:
    """Store notifications, which are due now."""
    columns: sql.Columns = {
        "subscription": [each.subscription for each in new],
        "occasion": [each.occasion.value for each in new],
        "body": [each.body for each in new],
        "made": [now] * len(new),
        "due": [now] * len(new),
        "leased": [False] * len(new),
        "tries": [0] * len(new),
        "error": [""] * len(new),
    }
    sql.insert_rows(session, NOTIFICATIONS, columns)


_MOST_WAITING = 10_000
_OF = "FROM notifications JOIN subscriptions ON subscriptions.id = subscription"
_IN_VOS = "(? = 0 OR lower(vo) = ANY(?))"
_DUE = f"{_OF} WHERE {UNDELIVERED} AND due <= ? AND {_IN_VOS}"
_HAS_DUE = f"SELECT 1 {_DUE} LIMIT 1"
_WAITING = f"""
    SELECT id, vo, owner, host FROM (
        SELECT id, vo, owner, host, due, row_number() OVER (PARTITION BY vo, owner ORDER BY turn, due, id) AS of_owner
        FROM (
            SELECT notifications.id AS id, vo, owner, host, due,
                row_number() OVER (PARTITION BY vo, owner, host ORDER BY due, notifications.id) AS turn {_DUE}
        ) AS at_hosts WHERE turn <= ?
    ) AS waiting ORDER BY of_owner, due, id LIMIT ?
"""  # noqa: S608 - names of ours
_LEASED = f"SELECT vo, owner, host {_OF} WHERE {UNDELIVERED} AND due > ? AND leased"


def has_due_notifications(session: Session, now: datetime, vos: Sequence[str]) -> bool:
    """Whether notifications of these VOs, empty = of any, are due."""
    lower = [vo.lower() for vo in vos]
    return bool(sql.rows(session, _HAS_DUE, sql.column_time(session, now), len(lower), lower))


def waiting_notifications(
    session: Session, now: datetime, vos: Sequence[str]
) -> list[tuple[int, tuple[str, str], str]]:
    """Return id, account and host of the first due notifications of each owner to each host, owners in turn.

    They are of these VOs, empty = of any.
    """
    lower = [vo.lower() for vo in vos]
    rows = sql.rows(session, _WAITING, sql.column_time(session, now), len(lower), lower, MOST_LEASED, _MOST_WAITING)
    return [(id_, (vo, owner), host) for id_, vo, owner, host in rows]


def leased_notifications(session: Session, now: datetime) -> list[tuple[tuple[str, str], str]]:
    """Return account and host of all notifications that are being delivered."""
    rows = sql.rows(session, _LEASED, sql.column_time(session, now))
    return [((vo, owner), host) for vo, owner, host in rows]


_LEASE = "UPDATE notifications SET due = ?, leased = ?, tries = tries + 1 WHERE id = ANY(?) AND due <= ? RETURNING id"
_TARGETS = f"""
    SELECT notifications.id, kind, address, secret, body, tries {_OF} WHERE notifications.id = ANY(?)
    ORDER BY notifications.id
"""


def lease_notifications(
    session: Session, ids: Sequence[int], now: datetime, until: datetime
) -> list[LeasedNotification]:
    """Lease those of the notifications that no concurrent call has leased, and return them."""
    times = sql.column_time(session, until), sql.column_time(session, now)
    leased = [id_ for (id_,) in sql.rows(session, _LEASE, times[0], True, list(ids), times[1])]
    return [
        LeasedNotification(id_, RecipientKind(kind), *rest) for id_, kind, *rest in sql.rows(session, _TARGETS, leased)
    ]


_LOCK = f"""
    SELECT notifications.id, made {_OF} WHERE notifications.id = ANY(?) AND {UNDELIVERED} AND {_IN_VOS}
    ORDER BY notifications.id FOR UPDATE OF notifications
"""
_RECORD = "UPDATE notifications SET due = ?, leased = ?, error = ?, delivered = ? WHERE id = ? AND tries = ?"


def lock_undelivered(session: Session, ids: Iterable[int], vos: Sequence[str]) -> dict[int, datetime]:
    """Lock those of the notifications that are not delivered, and return when each was made."""
    lower = [vo.lower() for vo in vos]
    return {id_: sql.utc_time(made) for id_, made in sql.rows(session, _LOCK, sorted(ids), len(lower), lower)}


def record_try(
    session: Session, id_: int, tries: int, *, error: str, due: datetime | None, delivered: datetime | None
) -> None:
    """Store the result of a try, unless it is not the last one."""
    times = (time and sql.column_time(session, time) for time in (due, delivered))
    next_due, done = times
    sql.execute(session, _RECORD, next_due, False, error, done, id_, tries)


_GIVE_UP = f"""
    UPDATE notifications SET due = NULL, leased = ?,
        error = CASE error WHEN '' THEN 'no notifier has run' ELSE error END
    WHERE {UNDELIVERED} AND due <= ? AND made < ?
"""  # noqa: S608 - a condition of ours


def give_up(session: Session, now: datetime, made_before: datetime) -> int:
    """Give up notifications that are due and were made earlier; return how many."""
    times = (sql.column_time(session, time) for time in (now, made_before))
    return sql.execute(session, _GIVE_UP, False, *times)


_OF_SUBSCRIPTIONS = """
    SELECT id, subscription, occasion, body, made, tries, error, due, delivered FROM notifications
    WHERE subscription = ANY(?) ORDER BY id
"""


def load_notifications(session: Session, subscriptions: Iterable[int]) -> list[NotificationRecord]:
    """Return the notifications of these subscriptions, the oldest first."""
    return [
        NotificationRecord(
            id_,
            subscription,
            Occasion(occasion),
            body,
            sql.utc_time(made),
            tries,
            error,
            due and sql.utc_time(due),
            delivered and sql.utc_time(delivered),
        )
        for id_, subscription, occasion, body, made, tries, error, due, delivered in sql.rows(
            session, _OF_SUBSCRIPTIONS, sorted(subscriptions)
        )
    ]
