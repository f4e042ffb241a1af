"""What only a diagnosis reads: the size of the database and what its own check finds, and counts of pilots."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Session

from pilotage.values.pilots import PilotState
from pilotage_server.core.diagnosis import CHECKED_BYTES, PilotFacts
from pilotage_server.core.pilots.pilots import ALIVE
from pilotage_server.storage.database import sql

_ALIVE = f"state IN ({', '.join(repr(state.value) for state in sorted(ALIVE))})"
_COUNTS = f"""
    SELECT (SELECT count(*) FROM pilots WHERE {_ALIVE}),
        (SELECT count(*) FROM pilots WHERE {_ALIVE} AND last_seen < ?),
        (SELECT coalesce(min(stamp), '') FROM pilots WHERE {_ALIVE} AND last_seen < ?),
        (SELECT count(*) FROM pilots WHERE state = '{PilotState.LOST.value}' AND last_seen IS NOT NULL AND ended >= ?),
        (SELECT count(*) FROM pilots WHERE {_ALIVE} AND alarm <> '')
"""  # noqa: S608 - of constants only
_RELEASES = f"SELECT release, count(*) FROM pilots WHERE {_ALIVE} GROUP BY release"  # noqa: S608 - of constants only


def pilot_facts(session: Session, silent_since: datetime, lost_since: datetime) -> PilotFacts:
    """Return the counts of living pilots, of those without contact since a time, and of those lost since another."""
    silent, lost = sql.column_time(session, silent_since), sql.column_time(session, lost_since)
    ((alive, quiet, example, gone, alarmed),) = sql.rows(session, _COUNTS, silent, silent, lost)
    releases = {str(name): int(count) for name, count in sql.rows(session, _RELEASES)}
    return PilotFacts(alive, quiet, example, gone, alarmed, releases)


_FAULTS_SHOWN = 3


def database_size(session: Session) -> int:
    """Return the size of the database in bytes, without the log."""
    if not sql.is_sqlite(session):
        ((size,),) = sql.rows(session, "SELECT pg_database_size(current_database())")
        return int(size)
    ((pages,),) = sql.rows(session, "PRAGMA page_count")
    ((page_bytes,),) = sql.rows(session, "PRAGMA page_size")
    return int(pages) * int(page_bytes)


def damage(session: Session, size: int) -> str | None:
    """Return what SQLite's quick check finds, "" = nothing; None = a large database, or PostgreSQL, is not checked."""
    if not sql.is_sqlite(session) or size > CHECKED_BYTES:
        return None
    found = [str(row[0]) for row in sql.rows(session, f"PRAGMA quick_check({_FAULTS_SHOWN})")]
    return "" if found == ["ok"] else "; ".join(found)
