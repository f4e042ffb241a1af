"""The audit in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage_server.core.audit import AuditEntry, AuditKind
from pilotage_server.storage.database import sql

_INSERT = """
    INSERT INTO audit (time, who, vo, roles, agent, what, subject, difference, reason)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_FIND = """
    SELECT id, time, who, vo, roles, agent, what, subject, difference, reason FROM audit
    WHERE id < ? AND time >= ? AND (who = ? OR ? = '') AND (what = ? OR ? = '') ORDER BY id DESC LIMIT ?
"""
_DELETE = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE time < ? ORDER BY time LIMIT ?)"
_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A selection of entries; `who` and `what` "" = any."""

    since: datetime
    who: str = ""
    what: str = ""


def insert_entry(session: Session, entry: AuditEntry) -> None:
    """Store an entry."""
    sql.execute(
        session,
        _INSERT,
        sql.column_time(session, entry.time),
        entry.who,
        entry.vo,
        ",".join(entry.roles),
        entry.agent,
        entry.what.value,
        entry.subject,
        entry.difference,
        entry.reason,
    )


def find_entries(session: Session, query: AuditQuery, before: int, limit: int) -> tuple[AuditEntry, ...]:
    """Return at most `limit` entries below the id `before` (0 = all), the newest first."""
    rows = sql.rows(
        session,
        _FIND,
        before or _LARGEST_ID,
        sql.column_time(session, query.since),
        query.who,
        query.who,
        query.what,
        query.what,
        limit,
    )
    return tuple(map(_entry, rows))


def delete_entries(session: Session, before: datetime, limit: int) -> int:
    """Remove at most `limit` entries that are older; return how many."""
    return sql.execute(session, _DELETE, sql.column_time(session, before), limit)


def _entry(row: Sequence[Any]) -> AuditEntry:
    id_, time, who, vo, roles, agent, what, subject, difference, reason = row
    return AuditEntry(
        sql.utc_time(time),
        who,
        vo,
        tuple(filter(None, roles.split(","))),
        AuditKind(what),
        subject,
        difference,
        reason,
        agent,
        id_,
    )
