"""Revocations of tokens in the database. The ends of pilots' credentials are in their own rows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, insert, select
from sqlmodel import Session

from pilotage_server.core.revocations import Revocation, RevocationKind
from pilotage_server.storage.database.tables import metadata

_REVOCATIONS = metadata.tables["revocations"]


def insert_revocation(session: Session, revocation: Revocation) -> None:
    """Store a revocation."""
    session.execute(
        insert(_REVOCATIONS).values(
            kind=revocation.kind.value,
            subject=revocation.subject,
            issuer=revocation.issuer,
            owner=revocation.owner,
            vo=revocation.vo,
            reason=revocation.reason,
            by=revocation.by,
            made=revocation.made,
            expires=revocation.expires,
        )
    )


def load_revocations(session: Session, now: datetime) -> tuple[Revocation, ...]:
    """Return the revocations that have not expired, the newest first."""
    rows = select(_REVOCATIONS).where(_REVOCATIONS.c.expires > now).order_by(_REVOCATIONS.c.id.desc())
    return tuple(
        Revocation(
            RevocationKind(row.kind),
            row.subject,
            row.reason,
            row.by,
            row.made,
            row.expires,
            row.issuer,
            row.owner,
            row.vo,
        )
        for row in session.execute(rows)
    )


def delete_expired_revocations(session: Session, now: datetime) -> int:
    """Remove expired revocations; return how many."""
    expired = delete(_REVOCATIONS).where(_REVOCATIONS.c.expires <= now).returning(_REVOCATIONS.c.id)
    return len(session.execute(expired).all())
