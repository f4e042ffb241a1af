"""Which servers belong to a database: joining it, changes of the signing keys, and the restore of a backup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.errors import StateConflictError
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.incarnation import (
    RESTORE,
    STEPS,
    Incarnation,
    Installation,
    LastSeen,
    keys_fault,
    next_incarnation,
    restore_fault,
    store_fault,
)
from pilotage_server.operations.audit import record_change
from pilotage_server.storage.database.fence import FencedError, close_fence, place_of
from pilotage_server.storage.database.installation import (
    add_incarnation,
    counters,
    fence_all_jobs,
    highest_attempt,
    highest_rows,
    load_installation,
    lock_installation,
    raise_node_versions,
    store_installation,
)
from pilotage_server.storage.database.transaction import Transaction

Keys = Mapping[str, datetime]
"""Ids of signing keys, with the times from which they sign."""

SERVER = Identity("server", "", (), frozenset())
"""The author of changes that a server finds in its key files."""


@dataclass(frozen=True, slots=True)
class Belongings:
    """What a server brings: its signing keys, the id of its file store (None = it has none), and what it has seen."""

    keys: Keys
    store: str | None
    seen: LastSeen | None


def join(transaction: Transaction, own: Belongings) -> Installation:
    """Let a server join the database and return the installation; the first server brings its parts.

    Raises
    ------
    StateConflictError
        The database is a backup that was put back, or has another file store or other keys; the text says what to do.
    """
    known = lock_installation(transaction.session)
    fault = restore_fault(known, place_of(transaction.session), counters(transaction.session), own.seen)
    if fault:
        raise StateConflictError(f"{fault}. If a backup was put back, or numbers were lost otherwise, {RESTORE}")
    if fault := store_fault(known.store, own.store):
        cure = f"set 'files' to the store of the other servers; if its files are lost, {RESTORE}"
        raise StateConflictError(f"this server cannot join the database: {fault}; {cure}")
    if fault := keys_fault(known.keys, own.keys, transaction.now):
        cure = "copy the keys of a server that works; if they are lost, run 'pilotage-server keys adopt'"
        raise StateConflictError(f"this server cannot join the database: {fault}; {cure}")
    joined = replace(known, store=known.store or own.store or "", keys={**own.keys, **known.keys})
    store_installation(transaction.session, joined)
    if known.keys:
        _record_keys(transaction, SERVER, known.keys, joined.keys)
    return joined


def change_keys(transaction: Transaction, added: Keys, removed: frozenset[str]) -> None:
    """Add keys to those of the database, and remove retired ones."""
    known = lock_installation(transaction.session)
    keys = {kid: time for kid, time in {**known.keys, **added}.items() if kid not in removed}
    store_installation(transaction.session, replace(known, keys=keys))
    _record_keys(transaction, SERVER, known.keys, keys)


def adopt_keys(transaction: Transaction, keys: Keys, login: str) -> None:
    """Make these the keys of the database, by an account of the machine; servers with others cannot join any more."""
    known = lock_installation(transaction.session)
    store_installation(transaction.session, replace(known, keys=keys))
    _record_keys(transaction, Identity(login, "", (), frozenset()), known.keys, keys)


def _record_keys(transaction: Transaction, by: Identity, before: Keys, after: Keys) -> None:
    """Store a change of the signing keys in the audit; another server may have stored it already."""
    if difference := line_difference(_key_lines(before), _key_lines(after)):
        record_change(transaction, by, AuditKind.KEYS, "signing keys", difference=difference)


def _key_lines(keys: Keys) -> list[str]:
    starts = {
        kid: f"{time:%Y-%m-%d %H:%M:%S} UTC" if time.year > 1 else "the first start" for kid, time in keys.items()
    }
    return [f"{kid} signs from {start}" for kid, start in sorted(starts.items())]


def confirm_place(transaction: Transaction) -> None:
    """Raise FencedError when the database has moved while the server ran, as in a failover of PostgreSQL."""
    known, place = load_installation(transaction.session), place_of(transaction.session)
    if known.place != place:
        raise FencedError(f"the database was {known.place} and is {place} now; if commits may be lost, {RESTORE}")


def last_seen(transaction: Transaction) -> LastSeen:
    """Return what a backup that is put back would lack."""
    known, rows = load_installation(transaction.session), highest_rows(transaction.session)
    return LastSeen(known.database_id, known.incarnation, rows.job, rows.position)


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the new incarnation, and how many waiting jobs it has fenced."""

    incarnation: Incarnation
    fenced_jobs: int


def begin_incarnation(
    transaction: Transaction, own: Belongings, lease: timedelta, known_incarnation: int = 0
) -> Restored:
    """Begin a new incarnation after a backup was put back; it takes the server's keys and file store as its own.

    `lease` = the default lease. `known_incarnation` = the highest number that is known from elsewhere.
    """
    session = transaction.session
    close_fence(session)
    known = lock_installation(session)
    seen = own.seen if own.seen is not None and own.seen.database_id == known.database_id else None
    last = counters(session)._replace(attempt=highest_attempt(session))
    if seen is not None:
        last = last._replace(job=max(last.job, seen.job), position=max(last.position, seen.position))
    number = max(known.incarnation, known_incarnation, seen.incarnation if seen is not None else 0) + 1
    new = next_incarnation(number, last, transaction.now)._replace(backup=counters(session))
    add_incarnation(session, new)
    fenced = fence_all_jobs(session, transaction.now, lease, new.base.attempt)
    raise_node_versions(session, STEPS.attempt)
    store_installation(
        session,
        replace(known, incarnation=number, place=place_of(session), store=own.store or known.store, keys=own.keys),
    )
    if known.keys:
        _record_keys(transaction, SERVER, known.keys, own.keys)
    return Restored(new, fenced)
