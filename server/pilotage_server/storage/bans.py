"""The bans in the database."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Row, and_, delete, insert, or_, select
from sqlmodel import Session

from pilotage.bans import Ban
from pilotage_server.core.ban_records import BanRecord, Node
from pilotage_server.storage.tables import metadata

_BANS = metadata.tables["bans"]


def load_bans(session: Session, now: datetime) -> tuple[BanRecord, ...]:
    """Return the bans that hold at `now`, in the order of their nodes."""
    in_force = or_(_BANS.c.until.is_(None), _BANS.c.until > now)
    order = _BANS.c.site, _BANS.c.ce, _BANS.c.queue, _BANS.c.id
    return tuple(_record(row) for row in session.execute(select(_BANS).where(in_force).order_by(*order)))


def insert_ban(session: Session, ban: Ban, by: str, since: datetime) -> BanRecord:
    """Store a ban and return it with its id."""
    values = {
        "site": ban.site,
        "ce": ban.ce or "",
        "queue": ban.queue or "",
        "reason": ban.reason,
        "by": by,
        "since": since,
        "until": ban.until,
    }
    new_id = session.execute(insert(_BANS).values(**values).returning(_BANS.c.id)).scalar_one()
    return BanRecord(new_id, ban, by, since)


def remove_bans(session: Session, node: Node) -> tuple[BanRecord, ...]:
    """Remove the bans of exactly this node and return them, also those that had ended."""
    removed = session.execute(delete(_BANS).where(_is(node)).returning(*_BANS.c)).all()
    return tuple(_record(row) for row in removed)


def remove_ended_bans(session: Session, now: datetime) -> None:
    """Remove the bans that no longer hold."""
    session.execute(delete(_BANS).where(and_(_BANS.c.until.is_not(None), _BANS.c.until <= now)))


def _is(node: Node) -> ColumnElement[bool]:
    return and_(_BANS.c.site == node.site, _BANS.c.ce == (node.ce or ""), _BANS.c.queue == (node.queue or ""))


def _record(row: Row[tuple[object, ...]]) -> BanRecord:
    ban = Ban(row.site, row.ce or None, row.queue or None, row.reason, row.until)
    return BanRecord(row.id, ban, row.by, row.since)
