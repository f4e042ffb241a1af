"""Leases in the database: renewed, found when they have run out, extended when no server was there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.common_reports import HeldJob
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.claims import IS_LEASED
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.jobs import JOBS, job_record
from pilotage_server.storage.pilots import IS_ALIVE, PILOTS
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import LEASED_JOB

LIFE = metadata.tables["server_life"]
_THE_ROW = 1


class LiveLease(NamedTuple):
    """A lease of a job; `lease` is the length that its owner asked for, None = the server's."""

    job_id: int
    attempt: int
    pilot_stamp: str
    lease: timedelta | None


_LIVE = f"SELECT id, attempt, pilot_stamp, lease_s FROM jobs WHERE id = ANY(?) AND {LEASED_JOB}"  # noqa: S608


def load_live(session: Session, job_ids: Iterable[int]) -> dict[int, LiveLease]:
    """Return the leases of those of the jobs that have one, by job id."""
    rows = bulk.rows(session, _LIVE, sorted(job_ids))
    return {
        job_id: LiveLease(job_id, attempt, stamp, timedelta(seconds=lease_s) if lease_s else None)
        for job_id, attempt, stamp, lease_s in rows
    }


_HELD = """
    SELECT jobs.id, jobs.attempt, state, jobs.started, starts, wall_clock_s, task_queue_id, watch, race,
        attempts.pilot_stamp, attempts.site, attempts.ce, attempts.queue,
        weight, charged_vo, charged_group, charged_owner, matched, metered
    FROM jobs JOIN attempts ON attempts.job_id = jobs.id AND attempts.attempt = jobs.attempt
    WHERE jobs.id = ANY(?) AND attempts.ended IS NULL
"""
_STATES = {state.value: state for state in JobState}
_queue = lru_cache(maxsize=4096)(QueueId)
_account = lru_cache(maxsize=4096)(Account)


def load_held(session: Session, job_ids: Iterable[int]) -> dict[int, HeldJob]:
    """Return those of the jobs that hold a lease, by id."""
    return {row[0]: _held(row) for row in bulk.rows(session, _HELD, sorted(job_ids))}


def _held(row: Sequence[Any]) -> HeldJob:
    id_, attempt, state, started, starts, wall_clock_s, task_queue_id, watch, race, stamp = row[:10]
    site, ce, queue, weight, vo, group, owner, matched, metered = row[10:]
    return HeldJob(
        id_,
        attempt,
        _STATES[state],
        started and bulk.time_of(started),
        starts,
        timedelta(seconds=wall_clock_s),
        task_queue_id,
        watch > 0,
        race > 0,
        stamp,
        _queue(site, ce, queue),
        weight,
        _account(vo, group, owner),
        bulk.time_of(matched),
        metered and bulk.time_of(metered),
    )


def renew(session: Session, leases: Sequence[LiveLease], now: datetime, usual: timedelta) -> None:
    """Let leases that are locked run from now on for their lengths, those without one for the usual one."""
    until = [now + (each.lease or usual) for each in leases]
    many_rows.change(session, JOBS, {"id": [each.job_id for each in leases]}, {"lease_until": until})


def lock_expired(session: Session, now: datetime, most: int) -> tuple[JobRecord, ...]:
    """Return jobs whose lease has run out, at most so many, the longest ago first; others sweep others."""
    query = (
        select(JOBS)
        .where(IS_LEASED, JOBS.c.lease_until < now)
        .order_by(JOBS.c.lease_until, JOBS.c.id)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    return tuple(job_record(row) for row in session.execute(query).mappings())


def extend_all(session: Session, gap: timedelta) -> None:
    """Let every lease run longer, and count no pilot as silent for a time in which there was nobody to hear it."""
    jobs = session.execute(select(JOBS.c.id, JOBS.c.lease_until).where(IS_LEASED)).all()
    if jobs:
        longer = update(JOBS).where(JOBS.c.id == bindparam("job")).values(lease_until=bindparam("until"))
        session.connection().execute(longer, [{"job": row.id, "until": row.lease_until + gap} for row in jobs])
    heard = IS_ALIVE & PILOTS.c.last_seen.is_not(None)
    pilots = session.execute(select(PILOTS.c.stamp, PILOTS.c.last_seen).where(heard)).all()
    if pilots:
        later = update(PILOTS).where(PILOTS.c.stamp == bindparam("pilot")).values(last_seen=bindparam("seen"))
        session.connection().execute(later, [{"pilot": row.stamp, "seen": row.last_seen + gap} for row in pilots])


def swap_last_alive(session: Session, now: datetime) -> datetime:
    """Note that a server lives at `now`, and return when one last did; `now` itself for the first ever."""
    if insert_if_absent(session, LIFE, {"id": _THE_ROW, "last_alive": now}):
        return now
    query = select(LIFE.c.last_alive).where(LIFE.c.id == _THE_ROW).with_for_update()
    before: datetime = session.execute(query).scalar_one()
    session.execute(update(LIFE).where(LIFE.c.id == _THE_ROW).values(last_alive=max(before, now)))
    return before
