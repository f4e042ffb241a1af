"""The fence of the database: a server writes only to the schema and the incarnation that it has joined.

Every write transaction of a server looks at both, together with the time that it reads anyway. On PostgreSQL it also
holds a shared lock until its end, so that a change of the schema or a restore waits for it, and later transactions of
the server are refused. SQLite has one writer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlmodel import Session

from pilotage.errors import WorldError
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import WriteConflictError

_LOCK = 0x70696C66
"""Number of the advisory lock of the fence."""

_LOOK = f"""
    SELECT clock_timestamp(), pg_try_advisory_xact_lock_shared({_LOCK}), schema_name, incarnation FROM installation
"""  # noqa: S608 - a number of ours
_LOOK_SQLITE = "SELECT schema_name, incarnation FROM installation"


class FencedError(WorldError):
    """The database is no longer the one that this server has joined: it must not write, and stops.

    A client may repeat the call, because another server or this one after a restart may serve it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; this server stops writing", transient=True)


@dataclass(frozen=True, slots=True)
class Fence:
    """The schema and the incarnation that a server has joined."""

    schema: str
    incarnation: int


def schema_name() -> str:
    """Return the name of this build's schema: a digest of its tables, columns and indexes.

    The name of the last migration would not do: a migration may change in place until it is on the main branch.
    """
    parts = [
        (table.name, sorted(table.columns.keys()), sorted(str(index.name) for index in table.indexes))
        for table in metadata.tables.values()
    ]
    return sha256(repr(sorted(parts)).encode()).hexdigest()[:12]


def check_fence(session: Session, fence: Fence) -> datetime | None:
    """Return the database's time, None for SQLite; call it first in a write transaction.

    Raises
    ------
    FencedError
        The database has another schema or incarnation.
    WriteConflictError
        The schema is being changed, or a backup restored, at this moment.
    """
    try:
        if sql.is_sqlite(session):
            ((schema, incarnation),) = sql.rows(session, _LOOK_SQLITE)
            time = None
        else:
            ((now, is_locked, schema, incarnation),) = sql.rows(session, _LOOK)
            time = sql.utc_time(now)
            if not is_locked:
                raise WriteConflictError("the schema is being changed, or a backup restored")
    except DBAPIError as error:
        if isinstance(error, ProgrammingError) or "no such" in str(error.orig):  # SQLite's kind is OperationalError
            raise FencedError("another release has changed the schema of the database") from error
        raise
    if schema != fence.schema:
        raise FencedError(f"another release has changed the schema of the database from {fence.schema} to {schema}")
    if incarnation != fence.incarnation:
        why = f"a backup was restored: the database is of incarnation {incarnation}, this server of {fence.incarnation}"
        raise FencedError(why)
    return time


def close_fence(session: Session) -> None:
    """Wait until no server writes, and keep all from writing until the transaction ends."""
    if not sql.is_sqlite(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


_PLACE = text("""
    SELECT 'PostgreSQL ' || (SELECT system_identifier FROM pg_control_system())
        || ', database ' || (SELECT oid FROM pg_database WHERE datname = current_database())
        || ', table ' || CAST('jobs' AS regclass)::oid
        || ', timeline ' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
""")


def place_of(session: Session) -> str:
    """Return where the database lies; a dump that is put back, or a recovery to a point in time, has another place.

    A file of SQLite does not show that it is a copy: `mark_backup` marks those that `pilotage-server backup` makes.
    """
    if sql.is_sqlite(session):
        return ""
    found: str = session.execute(_PLACE).scalar_one()
    return found
