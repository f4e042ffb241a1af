"""The condition of the database, for a diagnosis: its size, its commits, and what SQLite's own check finds."""

from __future__ import annotations

from sqlmodel import Session

from pilotage_server.core.diagnosis import CHECKED_BYTES
from pilotage_server.storage.database import sql

_FAULTS_SHOWN = 3


def database_size(session: Session) -> int:
    """Return the size of the database in bytes, without the log."""
    if not sql.is_sqlite(session):
        ((size,),) = sql.rows(session, "SELECT pg_database_size(current_database())")
        return int(size)
    ((pages,),) = sql.rows(session, "PRAGMA page_count")
    ((page_bytes,),) = sql.rows(session, "PRAGMA page_size")
    return int(pages) * int(page_bytes)


def write_and_revert(session: Session) -> None:
    """Write a row and revert it: a commit of nothing would not reach the disk."""
    for change in ("UPDATE server_life SET id = id + 1", "UPDATE server_life SET id = id - 1"):
        sql.execute(session, change)


def damage(session: Session, size: int) -> str | None:
    """Return what SQLite's quick check finds, "" = nothing; None = a large database, or PostgreSQL, is not checked."""
    if not sql.is_sqlite(session) or size > CHECKED_BYTES:
        return None
    found = [str(row[0]) for row in sql.rows(session, f"PRAGMA quick_check({_FAULTS_SHOWN})")]
    return "" if found == ["ok"] else "; ".join(found)
