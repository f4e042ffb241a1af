"""Bans, downtimes and versions of the resource tree in the database, and the lock that orders versions and pools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, or_, select
from sqlmodel import Session

from pilotage.resources.eligibility import Ban
from pilotage_server.core.resources.bans import BanRecord, TreeNode
from pilotage_server.core.resources.downtimes import Downtime
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import metadata

_TREES = metadata.tables["trees"]
_TREE_LOCK = 0x5049_4C54_5245_45
"""Key of the advisory lock in PostgreSQL: any number that is not used otherwise in this database."""


@dataclass(frozen=True, slots=True)
class TreeText:
    """One version of the tree as it was uploaded; version 0 = there is none yet."""

    version: int = 0
    text: str = ""
    format: str = ""
    created: datetime | None = None
    created_by: str = ""


def hold_tree(session: Session) -> int:
    """Lock the tree against replacement until the transaction ends, shared with others; return its version.

    SQLite has one writer at a time and needs no lock.
    """
    return _locked_version(session, shared=True)


def lock_tree(session: Session) -> int:
    """Lock the tree exclusively until the transaction ends; return its version."""
    return _locked_version(session, shared=False)


def _locked_version(session: Session, *, shared: bool) -> int:
    if not sql.is_sqlite(session):
        lock = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        session.execute(select(lock(_TREE_LOCK)))
    # A separate statement: changes by the transaction that the lock waited for are visible only to the next one.
    return active_tree_version(session)


def active_tree_version(session: Session) -> int:
    """Return the version of the active tree, which is the highest one; 0 = none."""
    version: int | None = session.execute(select(func.max(_TREES.c.version))).scalar_one()
    return version or 0


def newest_made(session: Session) -> tuple[int, datetime]:
    """Return the active version and its creation time; without any, 0 and a time before all others."""
    row = session.execute(select(_TREES.c.version, _TREES.c.created).order_by(_TREES.c.version.desc()).limit(1)).first()
    return (0, datetime.min.replace(tzinfo=UTC)) if row is None else (row[0], row[1])


def load_tree_text(session: Session) -> TreeText:
    """Return the text of the active tree."""
    row = session.execute(select(_TREES).order_by(_TREES.c.version.desc()).limit(1)).one_or_none()
    if row is None:
        return TreeText()
    return TreeText(row.version, row.text, row.format, row.created, row.created_by)


def delete_superseded(session: Session, before: datetime) -> int:
    """Remove the versions that were replaced before then; return how many."""
    in_force_then = select(func.max(_TREES.c.version)).where(_TREES.c.created <= before).scalar_subquery()
    old = delete(_TREES).where(_TREES.c.version < in_force_then).returning(_TREES.c.version)
    return len(session.execute(old).all())


def insert_tree(session: Session, tree: TreeText) -> None:
    """Store a new version."""
    session.execute(
        insert(_TREES).values(
            version=tree.version,
            text=tree.text,
            format=tree.format,
            created=tree.created,
            created_by=tree.created_by,
        )
    )


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


def remove_bans(session: Session, node: TreeNode) -> tuple[BanRecord, ...]:
    """Remove the bans of exactly this node, also ended ones, and return them."""
    removed = session.execute(delete(_BANS).where(_is(node)).returning(*_BANS.c)).all()
    return tuple(_record(row) for row in removed)


def remove_ended_bans(session: Session, now: datetime) -> None:
    """Remove ended bans."""
    session.execute(delete(_BANS).where(and_(_BANS.c.until.is_not(None), _BANS.c.until <= now)))


def _is(node: TreeNode) -> ColumnElement[bool]:
    return and_(_BANS.c.site == node.site, _BANS.c.ce == (node.ce or ""), _BANS.c.queue == (node.queue or ""))


def _record(row: Row[tuple[object, ...]]) -> BanRecord:
    ban = Ban(row.site, row.ce or None, row.queue or None, row.reason, row.until)
    return BanRecord(row.id, ban, row.by, row.since)


_DOWNTIMES = metadata.tables["downtimes"]


def load_downtimes(session: Session, now: datetime) -> tuple[Downtime, ...]:
    """Return the downtimes that are not over at `now`, by their starts."""
    coming = select(_DOWNTIMES).where(_DOWNTIMES.c.end > now).order_by(_DOWNTIMES.c.start, _DOWNTIMES.c.id)
    return tuple(_downtime(row) for row in session.execute(coming))


def insert_downtime(session: Session, downtime: Downtime, made: datetime) -> Downtime:
    """Store a downtime and return it with its id."""
    node = downtime.node
    values = {
        "site": node.site,
        "ce": node.ce or "",
        "queue": node.queue or "",
        "reason": downtime.reason,
        "by": downtime.by,
        "made": made,
        "start": downtime.start,
        "end": downtime.end,
        "drain_s": downtime.drain.total_seconds(),
    }
    new_id = session.execute(insert(_DOWNTIMES).values(**values).returning(_DOWNTIMES.c.id)).scalar_one()
    return replace(downtime, id=new_id)


def delete_downtime(session: Session, downtime: Downtime) -> None:
    """Remove a downtime."""
    session.execute(delete(_DOWNTIMES).where(_DOWNTIMES.c.id == downtime.id))


def delete_past_downtimes(session: Session, now: datetime) -> int:
    """Remove the downtimes that are over; return how many."""
    past = delete(_DOWNTIMES).where(_DOWNTIMES.c.end <= now).returning(_DOWNTIMES.c.id)
    return len(session.execute(past).all())


def _downtime(row: Row[tuple[object, ...]]) -> Downtime:
    node = TreeNode(row.site, row.ce or None, row.queue or None)
    return Downtime(node, row.reason, row.start, row.end, timedelta(seconds=row.drain_s), row.by, row.id)
