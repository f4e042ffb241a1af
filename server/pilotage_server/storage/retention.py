"""Retention: removal of expired rows in bounded batches. Also the jobs under policies, read in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import delete, exists, select, text, tuple_, update
from sqlmodel import Session

from pilotage_server.core.jobs.record import JobRecord, PolicyWatch
from pilotage_server.storage.attempts import ATTEMPTS
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.tables import LIVE_JOB, UNREPORTED, WATCHED_JOB
from pilotage_server.storage.jobs import JOBS, chunks, job_record
from pilotage_server.storage.pilots import IS_OVER, PILOTS, delete_pilot_logs, remove_slots
from pilotage_server.storage.submission.dependencies import IS_PARENT, delete_empty_blocks
from pilotage_server.storage.submission.templates import INPUT_FILES, OUTPUTS, STORED, TEMPLATES, release_templates
from pilotage_server.storage.submission.workflows import delete_empty_workflows

# A job that is being rescheduled is locked; it must not be removed.
# Jobs with a fence stay: leftovers of the lost attempt must still be found.
# Parents stay as long as a child waits for them: how they ended decides whether it may run.
_ENDED = f"""
    SELECT id, template_id, blocked_by FROM jobs WHERE ended < ? AND lease_until IS NULL AND NOT {IS_PARENT}
    ORDER BY ended LIMIT ? FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - a condition of ours
_DELETE_BY_JOB = tuple(
    f"DELETE FROM {table} WHERE {job} = ANY(?)"  # noqa: S608 - names of tables
    for table, job in (
        *((table, "job_id") for table in ("output_files", "attempts", "copies", "races", "job_events")),
        ("jobs", "id"),
    )
)


def delete_ended_jobs(session: Session, ended_before: datetime, limit: int) -> int:
    """Remove at most `limit` jobs that ended earlier, with all rows that belong to them; return how many."""
    rows = sql.rows(session, _ENDED, sql.column_time(session, ended_before), limit)
    if rows:
        for statement in _DELETE_BY_JOB:
            sql.execute(session, statement, [job_id for job_id, _, _ in rows])
        release_templates(session, Counter(template_id for _, template_id, _ in rows))
        delete_empty_blocks(session, {block for _, _, block in rows if block})
        delete_empty_workflows(session, [job_id for job_id, _, _ in rows])
    return len(rows)


def delete_ended_pilots(session: Session, ended_before: datetime, limit: int) -> int:
    """Remove at most `limit` pilots that ended earlier and hold no lease; return how many."""
    holds = exists().where(ATTEMPTS.c.pilot_stamp == PILOTS.c.stamp, text(UNREPORTED), ATTEMPTS.c.ended.is_(None))
    old = select(PILOTS.c.stamp).where(PILOTS.c.ended < ended_before, IS_OVER, ~holds)
    # A pilot that makes contact again is locked; it must not be removed.
    locked = old.order_by(PILOTS.c.ended).limit(limit).with_for_update(skip_locked=True)
    stamps = session.execute(locked).scalars().all()
    remove_slots(session, stamps)
    delete_pilot_logs(session, stamps)
    for chunk in chunks(stamps):
        session.execute(delete(PILOTS).where(one_of(PILOTS.c.stamp, chunk)))
    return len(stamps)


def delete_unused_uploads(session: Session, before: datetime, limit: int) -> int:
    """Remove at most `limit` older uploads that no job of their holder uses; return how many."""
    brought = (
        exists()
        .where(INPUT_FILES.c.checksum == STORED.c.checksum)
        .where(TEMPLATES.c.id == INPUT_FILES.c.template_id)
        .where(TEMPLATES.c.owner == STORED.c.owner, TEMPLATES.c.vo == STORED.c.vo)
    )
    old = select(STORED.c.checksum, STORED.c.vo, STORED.c.owner).where(STORED.c.stored < before, ~brought)
    rows = session.execute(old.order_by(STORED.c.stored).limit(limit)).all()
    for checksum, vo, owner in rows:
        key = STORED.c.checksum == checksum, STORED.c.vo == vo, STORED.c.owner == owner
        # An upload that was repeated meanwhile is new again.
        session.execute(delete(STORED).where(*key, STORED.c.stored < before))
    return len(rows)


def unnamed_checksums(session: Session, checksums: Iterable[str]) -> set[str]:
    """Return those of the checksums that no row has any more."""
    unnamed: set[str] = set()
    for chunk in chunks(checksums):
        unnamed |= set(chunk)
        for table in (STORED, OUTPUTS, INPUT_FILES):
            query = select(table.c.checksum).where(one_of(table.c.checksum, chunk))
            unnamed -= set(session.execute(query.distinct()).scalars())
    return unnamed


WatchPosition = tuple[int, int]
"""The position in the jobs under policies: the watch and the id of the last job read."""


def first_watched(least: PolicyWatch) -> WatchPosition:
    """Return the first position for jobs of this watch and above."""
    return (least.value, 0)


def next_watched(session: Session, after: WatchPosition, most: int) -> tuple[JobRecord, ...]:
    """Return at most `most` jobs after this position; empty = there are no more."""
    query = (
        select(JOBS)
        .where(text(WATCHED_JOB), tuple_(JOBS.c.watch, JOBS.c.id) > after)
        .order_by(JOBS.c.watch, JOBS.c.id)
        .limit(most)
    )
    return tuple(job_record(row) for row in session.execute(query).mappings())


def watch_all(session: Session, least: PolicyWatch) -> int:
    """Raise the watch of every live job to at least this one; return how many changed."""
    statement = update(JOBS).where(text(LIVE_JOB), JOBS.c.watch < least.value).values(watch=least.value)
    return session.connection().execute(statement).rowcount
