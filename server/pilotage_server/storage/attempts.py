"""Attempts in the database: who had a job, how it ended, what it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, text, tuple_, update
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.leases import LOST_BY_SILENCE, AttemptRecord
from pilotage_server.core.reports import JobReport
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import UNREPORTED

ATTEMPTS = metadata.tables["attempts"]

AttemptKey = tuple[int, int]
"""Job id and attempt."""


def insert_attempts(session: Session, attempts: Sequence[AttemptRecord]) -> None:
    """Store new attempts, which hold their leases."""
    if attempts:
        session.connection().execute(insert(ATTEMPTS), [_new_row(attempt) for attempt in attempts])


def load_attempts(session: Session, keys: Iterable[AttemptKey]) -> dict[AttemptKey, AttemptRecord]:
    """Return the attempts by job and number; those that there are not are left out."""
    found: dict[AttemptKey, AttemptRecord] = {}
    for chunk in chunks(sorted(set(keys))):
        named = tuple_(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt).in_(chunk)
        for row in session.execute(select(ATTEMPTS).where(named)).mappings():
            found[row["job_id"], row["attempt"]] = attempt_record(row)
    return found


def load_history(session: Session, job_id: int) -> tuple[AttemptRecord, ...]:
    """Return all attempts of a job, the first one first."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.job_id == job_id).order_by(ATTEMPTS.c.attempt)
    return tuple(attempt_record(row) for row in session.execute(query).mappings())


def load_unreported(session: Session, pilot_stamp: str) -> tuple[AttemptRecord, ...]:
    """Return the attempts that a pilot has still to answer for: those it holds, and those that were taken from it."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.pilot_stamp == pilot_stamp, text(UNREPORTED))
    rows = session.execute(query.order_by(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt)).mappings()
    return tuple(attempt_record(row) for row in rows)


def count_live(session: Session) -> dict[str, int]:
    """Return how many attempts with a lease each pilot has, by stamp."""
    query = select(ATTEMPTS.c.pilot_stamp, func.count()).where(text(UNREPORTED), ATTEMPTS.c.ended.is_(None))
    return {row[0]: row[1] for row in session.execute(query.group_by(ATTEMPTS.c.pilot_stamp))}


def load_metered(session: Session) -> tuple[AttemptRecord, ...]:
    """Return every attempt that uses something now, for somebody to be charged for."""
    query = select(ATTEMPTS).where(text(UNREPORTED), ATTEMPTS.c.ended.is_(None), ATTEMPTS.c.metered.is_not(None))
    return tuple(attempt_record(row) for row in session.execute(query).mappings())


def record_facts(session: Session, report: JobReport, values: Mapping[str, Any]) -> None:
    """Keep what the pilot says of an attempt: numbers and times, and the columns in `values`."""
    facts: dict[str, Any] = {
        "exit_code": report.exit_code,
        "signal": report.signal,
        "cpu_s": report.cpu_s,
        "wall_s": report.wall_s,
        "suspended_s": report.suspended_s,
        "peak_memory_mib": report.peak_memory_mib,
    }
    if report.started is not None:
        facts["started"] = report.started
    change(session, [(report.job_id, report.attempt)], facts | dict(values))


def change(session: Session, keys: Iterable[AttemptKey], values: Mapping[str, Any]) -> None:
    """Give attempts these columns."""
    for chunk in chunks(keys):
        named = tuple_(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt).in_(chunk)
        session.connection().execute(update(ATTEMPTS).where(named).values(dict(values)))


def close(session: Session, key: AttemptKey) -> None:
    """Ask its pilot no more for an attempt that was lost by silence: its word would come too late."""
    lost = ATTEMPTS.c.ended.is_not(None), ATTEMPTS.c.outcome.in_(sorted(LOST_BY_SILENCE))
    this = ATTEMPTS.c.job_id == key[0], ATTEMPTS.c.attempt == key[1]
    session.execute(update(ATTEMPTS).where(*this, *lost).values(reported=True))


def attempt_record(row: RowMapping) -> AttemptRecord:
    """Return the record of one row of `attempts`."""
    return AttemptRecord(
        job_id=row["job_id"],
        attempt=row["attempt"],
        pilot_stamp=row["pilot_stamp"],
        queue=QueueId(row["site"], row["ce"], row["queue"]),
        node=row["node"],
        slot=row["slot"],
        cpus=row["cpus"],
        weight=row["weight"],
        account=Account(row["charged_vo"], row["charged_group"], row["charged_owner"]),
        matched=row["matched"],
        ended=row["ended"],
        outcome=row["outcome"],
        reason=row["reason"],
        reported=row["reported"],
        metered=row["metered"],
    )


def _new_row(attempt: AttemptRecord) -> dict[str, Any]:
    return {
        "job_id": attempt.job_id,
        "attempt": attempt.attempt,
        "pilot_stamp": attempt.pilot_stamp,
        "site": attempt.queue.site,
        "ce": attempt.queue.ce,
        "queue": attempt.queue.queue,
        "node": attempt.node,
        "slot": attempt.slot,
        "cpus": attempt.cpus,
        "matched": attempt.matched,
        "outcome": "",
        "reason": "",
        "cpu_s": 0.0,
        "wall_s": 0.0,
        "suspended_s": 0.0,
        "peak_memory_mib": 0,
        "reported": False,
        "weight": attempt.weight,
        "charged_vo": attempt.account.vo,
        "charged_group": attempt.account.group,
        "charged_owner": attempt.account.owner,
        "metered": attempt.matched,
    }
