"""Attributes of jobs that policies refer to, in the database, and the lock that orders new ones with new jobs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import func, insert, select
from sqlmodel import Session

from pilotage_server.storage import bulk
from pilotage_server.storage.tables import metadata

_ATTRIBUTES = metadata.tables["significant_attributes"]
_LOCK = 0x5049_4C54_4144_5331
"""Key of the advisory lock on PostgreSQL; any number that nobody else in this database takes."""


def load_significant(session: Session) -> frozenset[str]:
    """Return the folded names."""
    return frozenset(session.execute(select(_ATTRIBUTES.c.name)).scalars())


def hold_significant(session: Session) -> frozenset[str]:
    """Return the folded names, and let nobody add to them until the transaction ends.

    SQLite needs no lock for that: it has one writer at a time.
    """
    return _locked(session, shared=True)


def lock_significant(session: Session) -> frozenset[str]:
    """Wait until nobody holds the names, keep others from them until the transaction ends, return them."""
    return _locked(session, shared=False)


def insert_significant(session: Session, names: Iterable[str], now: datetime) -> None:
    """Add names that are not there yet; they have been locked."""
    session.connection().execute(insert(_ATTRIBUTES), [{"name": name, "since": now} for name in sorted(names)])


def _locked(session: Session, *, shared: bool) -> frozenset[str]:
    if not bulk.is_sqlite(session):
        lock = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        session.execute(select(lock(_LOCK)))
    # A statement of its own: what the lock waited for is visible only to the next one.
    return load_significant(session)
