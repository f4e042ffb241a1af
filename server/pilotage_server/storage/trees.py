"""The versions of the resource tree as they were given, and the lock that orders them with new pools."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, func, insert, select
from sqlmodel import Session

from pilotage_server.storage import bulk
from pilotage_server.storage.tables import metadata

_TREES = metadata.tables["trees"]
_TREE_LOCK = 0x5049_4C54_5245_45
"""Key of the advisory lock on PostgreSQL; any number that nobody else in this database takes."""


@dataclass(frozen=True, slots=True)
class TreeText:
    """One version of the tree as it was given; version 0 = none was given yet."""

    version: int = 0
    text: str = ""
    format: str = ""
    created: datetime | None = None
    created_by: str = ""


def hold_tree(session: Session) -> int:
    """Keep the tree from being replaced until the transaction ends, and return its version.

    SQLite needs no lock for that: it has one writer at a time.
    """
    return _locked_version(session, shared=True)


def lock_tree(session: Session) -> int:
    """Wait until nobody holds the tree, keep others from it until the transaction ends, return its version."""
    return _locked_version(session, shared=False)


def _locked_version(session: Session, *, shared: bool) -> int:
    if not bulk.is_sqlite(session):
        lock = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        session.execute(select(lock(_TREE_LOCK)))
    # A statement of its own: what the lock waited for is visible only to the next one.
    return version_in_force(session)


def version_in_force(session: Session) -> int:
    """Return the highest version; 0 = none."""
    version: int | None = session.execute(select(func.max(_TREES.c.version))).scalar_one()
    return version or 0


def newest_made(session: Session) -> tuple[int, datetime]:
    """Return the version in force, and when it was made; 0, and a time before all others, = none."""
    row = session.execute(select(_TREES.c.version, _TREES.c.created).order_by(_TREES.c.version.desc()).limit(1)).first()
    return (0, datetime.min.replace(tzinfo=UTC)) if row is None else (row[0], row[1])


def load_tree_text(session: Session) -> TreeText:
    """Return the tree in force as it was given."""
    row = session.execute(select(_TREES).order_by(_TREES.c.version.desc()).limit(1)).one_or_none()
    if row is None:
        return TreeText()
    return TreeText(row.version, row.text, row.format, row.created, row.created_by)


def delete_superseded(session: Session, before: datetime) -> int:
    """Remove the versions that were no longer in force then; return how many."""
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
