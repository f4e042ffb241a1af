"""Jobs that the first release held because it could not evaluate expressions."""

from __future__ import annotations

from sqlalchemy import select, text
from sqlmodel import Session

from pilotage_server.core.job_record import JobRecord
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.jobs import JOBS, load_jobs
from pilotage_server.storage.tables.conditions import HELD_JOB

_REASON = "its ClassAd expression (%) cannot be evaluated yet: a later release of this server will; edit the job%"
"""What that release said to their owners."""


def lock_expression_holds(session: Session, limit: int) -> list[JobRecord]:
    """Return at most `limit` of them, which nobody else moves until the transaction ends."""
    held = select(JOBS.c.id).where(text(HELD_JOB), JOBS.c.reason.like(_REASON)).order_by(JOBS.c.id).limit(limit)
    ids = session.execute(held).scalars().all()
    lock_jobs(session, ids)
    # Asked again: who released one meanwhile was waited for.
    still = session.execute(held.where(JOBS.c.id.in_(ids))).scalars().all()
    return list(load_jobs(session, still).values())
