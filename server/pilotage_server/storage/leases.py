"""Leases and fences in the database: binding, renewal, expiry, extension after downtime, and counts of leased jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, or_, select, text, update
from sqlmodel import Session

from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import LeasedJob
from pilotage_server.core.jobs.record import Awaited, ExitCheck, JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import FENCED_JOB, LEASED_JOB, RACING_JOB, TAKEN, metadata
from pilotage_server.storage.jobs import JOBS, chunks, job_record
from pilotage_server.storage.pilots import IS_ALIVE, PILOTS

IS_LEASED = text(LEASED_JOB)


class PilotLocation(NamedTuple):
    """The pilot that runs a job, with its queue and node; the fields are columns of `jobs`."""

    pilot_stamp: str
    site: str
    ce: str
    queue: str
    node: str


class Binding(NamedTuple):
    """A waiting job, the slot that it is bound to, and the end of its lease."""

    job_id: int
    lease_until: datetime
    place: PilotLocation
    slot: str


_WHERE_TO = ("lease_until", *PilotLocation._fields, "slot")
_BOUND = """
    UPDATE jobs
    SET state = 'MATCHED', reason = '', started = NULL, exit_code = NULL, signal = NULL, attempt = {} + 1, {}
"""
_NEXT_SQLITE, _NEXT = "max(attempt, attempt_floor)", "greatest(attempt, attempt_floor)"
_BIND_EACH = f"{_BOUND.format(_NEXT_SQLITE, ', '.join(f'{name} = ?' for name in _WHERE_TO))} WHERE id = ?"
_BIND_ALL = f"""
    {_BOUND.format(_NEXT, ", ".join(f"{name} = bound.{name}" for name in _WHERE_TO))}
    FROM unnest(?::timestamptz[], {", ".join("?::text[]" for _ in _WHERE_TO[1:])}, ?::bigint[])
        AS bound ({", ".join(_WHERE_TO)}, id)
    WHERE jobs.id = bound.id
"""


def bind(session: Session, bindings: Sequence[Binding]) -> None:
    """Bind locked jobs to slots; it sets the same columns as the transition of a matched job."""
    times = {until: sql.column_time(session, until) for until in {binding.lease_until for binding in bindings}}
    rows = [(times[until], *place, slot, job_id) for job_id, until, place, slot in bindings]
    if sql.is_sqlite(session):
        sql.execute_many(session, _BIND_EACH, rows)
    elif rows:
        sql.execute(session, _BIND_ALL, *map(list, zip(*rows, strict=True)))


_RIVALS = f"""
    SELECT id FROM jobs WHERE {RACING_JOB} AND race IN (SELECT race FROM jobs WHERE id = ANY(?) AND {RACING_JOB})
"""  # noqa: S608 - of our own texts only


def lock_jobs(session: Session, ids: Iterable[int], *, rivals: bool = False) -> None:
    """Lock these jobs until the transaction ends and, with `rivals`, the other jobs of their races.

    All transactions that lock several jobs of others lock them in the order of ids, so that they never wait for each
    other in a circle. SQLite has one writer at a time and needs no lock.
    """
    wanted = sorted(set(ids))
    if wanted and not sql.is_sqlite(session):
        if rivals:
            wanted = sorted({*wanted, *(row[0] for row in sql.rows(session, _RIVALS, wanted))})
        sql.execute(session, "SELECT id FROM jobs WHERE id = ANY(?) ORDER BY id FOR UPDATE", wanted)


def count_leased(session: Session) -> dict[tuple[QueueId, int], int]:
    """Return the number of jobs with a lease, by queue and task queue."""
    columns = (JOBS.c.site, JOBS.c.ce, JOBS.c.queue, JOBS.c.task_queue_id)
    rows = session.execute(select(*columns, func.count()).where(IS_LEASED).group_by(*columns))
    return {(QueueId(site, ce, queue), task_queue_id): jobs for site, ce, queue, task_queue_id, jobs in rows}


LIFE = metadata.tables["server_life"]
_THE_ROW = 1


class LiveLease(NamedTuple):
    """A current lease; `lease` = the length that the owner asked for, None = the server's default."""

    job_id: int
    attempt: int
    pilot_stamp: str
    lease: timedelta | None


_LIVE = f"SELECT id, attempt, pilot_stamp, lease_s FROM jobs WHERE id = ANY(?) AND {LEASED_JOB}"  # noqa: S608


def load_live(session: Session, job_ids: Iterable[int]) -> dict[int, LiveLease]:
    """Return the current leases of these jobs, by job id."""
    rows = sql.rows(session, _LIVE, sorted(job_ids))
    return {
        job_id: LiveLease(job_id, attempt, stamp, timedelta(seconds=lease_s) if lease_s else None)
        for job_id, attempt, stamp, lease_s in rows
    }


_HELD = """
    SELECT jobs.id, jobs.attempt, state, jobs.started, starts, wall_clock_s, owner, task_queue_id, watch, race,
        exit_check, awaited, attempts.pilot_stamp, attempts.site, attempts.ce, attempts.queue,
        cpus, gpus, weight, charged_vo, charged_group, charged_owner, matched, metered
    FROM jobs JOIN attempts ON attempts.job_id = jobs.id AND attempts.attempt = jobs.attempt
    WHERE jobs.id = ANY(?) AND attempts.ended IS NULL
"""
_STATES = {state.value: state for state in JobState}
_EXIT_CHECKS = {check.value: check for check in ExitCheck}
_AWAITED = {awaited.value: awaited for awaited in Awaited}
_queue = lru_cache(maxsize=4096)(QueueId)
_account = lru_cache(maxsize=4096)(Account)


def load_held(session: Session, job_ids: Iterable[int]) -> dict[int, LeasedJob]:
    """Return those of the jobs that have a lease, by id."""
    return {row[0]: _held(row) for row in sql.rows(session, _HELD, sorted(job_ids))}


def _held(row: Sequence[Any]) -> LeasedJob:
    id_, attempt, state, started, starts, wall_clock_s, owner, task_queue_id, watch, race = row[:10]
    exit_check, awaited, stamp, site, ce, queue, cpus, gpus, weight, vo, group, payer, matched, metered = row[10:]
    return LeasedJob(
        id_,
        attempt,
        _STATES[state],
        started and sql.utc_time(started),
        starts,
        timedelta(seconds=wall_clock_s),
        owner,
        task_queue_id,
        watch > 0,
        race > 0,
        _EXIT_CHECKS[exit_check],
        _AWAITED[awaited],
        stamp,
        _queue(site, ce, queue),
        cpus,
        gpus,
        weight,
        _account(vo, group, payer),
        sql.utc_time(matched),
        metered and sql.utc_time(metered),
    )


def renew(session: Session, leases: Sequence[LiveLease], now: datetime, usual: timedelta) -> None:
    """Renew locked leases from now on for their lengths; `usual` is the default length."""
    until = [now + (each.lease or usual) for each in leases]
    sql.update_rows(session, JOBS, {"id": [each.job_id for each in leases]}, {"lease_until": until})


def lock_expired(session: Session, now: datetime, most: int) -> tuple[JobRecord, ...]:
    """Lock and return at most `most` jobs with expired leases, the oldest first; locked ones are skipped."""
    query = (
        select(JOBS)
        .where(IS_LEASED, JOBS.c.lease_until < now)
        .order_by(JOBS.c.lease_until, JOBS.c.id)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    return tuple(job_record(row) for row in session.execute(query).mappings())


def extend_all(session: Session, gap: timedelta) -> None:
    """Extend every lease by `gap`, and move the last contact of pilots by it: no server could receive them."""
    # Sorted here: with ORDER BY the database would read all jobs by id instead of those with a lease.
    jobs = sorted(session.execute(select(JOBS.c.id, JOBS.c.lease_until).where(IS_LEASED)))
    if jobs:
        longer = update(JOBS).where(JOBS.c.id == bindparam("job")).values(lease_until=bindparam("until"))
        session.connection().execute(longer, [{"job": job_id, "until": until + gap} for job_id, until in jobs])
    in_contact = IS_ALIVE & PILOTS.c.last_seen.is_not(None)
    pilots = sorted(session.execute(select(PILOTS.c.stamp, PILOTS.c.last_seen).where(in_contact)))
    if pilots:
        later = update(PILOTS).where(PILOTS.c.stamp == bindparam("pilot")).values(last_seen=bindparam("seen"))
        session.connection().execute(later, [{"pilot": stamp, "seen": seen + gap} for stamp, seen in pilots])


def swap_last_alive(session: Session, now: datetime) -> datetime:
    """Record that a server is alive at `now`; return the time recorded before, `now` if there is none."""
    if insert_if_absent(session, LIFE, {"id": _THE_ROW, "last_alive": now}):
        return now
    query = select(LIFE.c.last_alive).where(LIFE.c.id == _THE_ROW).with_for_update()
    before: datetime = session.execute(query).scalar_one()
    session.execute(update(LIFE).where(LIFE.c.id == _THE_ROW).values(last_alive=max(before, now)))
    return before


_IS_FENCED = text(FENCED_JOB)

# The fence of a job is for the last attempt that was taken, not the last one: that of a winning copy comes later.
LAST_TAKEN = f"SELECT max(attempt) FROM attempts WHERE job_id = jobs.id AND {TAKEN}"  # noqa: S608 - of our own texts only
_LAST_OF_JOBS = f"SELECT id, ({LAST_TAKEN}) FROM jobs WHERE id = ANY(?) AND {FENCED_JOB}"  # noqa: S608


def fenced_of(session: Session, taken: Iterable[AttemptKey]) -> set[AttemptKey]:
    """Return those attempts, of some that were taken from their pilots, whose jobs are fenced because of them.

    It does not matter whether their pilots have reported their ends meanwhile.
    """
    keys = set(taken)
    last = dict(sql.rows(session, _LAST_OF_JOBS, sorted({job_id for job_id, _ in keys})))
    return {(job_id, attempt) for job_id, attempt in keys if job_id in last and attempt >= (last[job_id] or 0)}


def release_fences(session: Session, job_ids: Iterable[int], now: datetime) -> list[tuple[int, QueueHead]]:
    """Remove the fences of these jobs; return those that may be matched now, with their task queues.

    The fence of a restore stays until its time: whatever is known of the last attempt, one of the lost time may live.
    """
    columns = JOBS.c.state, JOBS.c.task_queue_id, JOBS.c.priority, JOBS.c.id
    waiting: list[tuple[int, QueueHead]] = []
    for chunk in chunks(sorted(set(job_ids))):
        is_over = or_(JOBS.c.fenced_until.is_(None), JOBS.c.fenced_until <= now, JOBS.c.state != JobState.WAITING.value)
        fenced = update(JOBS).where(one_of(JOBS.c.id, chunk), _IS_FENCED, is_over)
        over = fenced.values(lease_until=None).returning(*columns)
        rows = session.connection().execute(over).all()
        waiting += (
            (row.task_queue_id, QueueHead(row.priority, row.id)) for row in rows if row.state == JobState.WAITING
        )
    return waiting


def lock_expired_fences(session: Session, now: datetime, most: int) -> list[int]:
    """Lock and return at most `most` jobs whose fences have expired, the oldest first; locked ones are skipped."""
    lapsed = select(JOBS.c.id).where(_IS_FENCED, JOBS.c.lease_until < now).order_by(JOBS.c.lease_until, JOBS.c.id)
    return list(session.execute(lapsed.limit(most).with_for_update(skip_locked=True)).scalars())


def lock_fences_of_pilots(session: Session, stamps: Iterable[str]) -> list[int]:
    """Lock and return the jobs that are fenced because of attempts at these pilots."""
    found: list[int] = []
    for chunk in chunks(sorted(stamps)):
        # This uses the index on the attempts that were taken from a pilot and not reported.
        asked = select(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt).where(one_of(ATTEMPTS.c.pilot_stamp, chunk), text(TAKEN))
        taken = [(row.job_id, row.attempt) for row in session.execute(asked)]
        ids = sorted({job_id for job_id, _ in fenced_of(session, taken)})
        fenced = select(JOBS.c.id).where(one_of(JOBS.c.id, ids), _IS_FENCED).order_by(JOBS.c.id).with_for_update()
        found += session.execute(fenced).scalars()
    return found


_IS_LEASED = text(f"jobs.{LEASED_JOB}")


def running_by_pool(session: Session) -> dict[str, int]:
    """Return the numbers of jobs with a lease by pool id; "" = jobs without a pool."""
    query = select(JOBS.c.pool_id, func.count()).where(_IS_LEASED).group_by(JOBS.c.pool_id)
    return {row[0]: row[1] for row in session.execute(query)}


class LeasedJobs(NamedTuple):
    """The numbers of jobs with a lease: of those that have not started, and of the others."""

    matched: int = 0
    running: int = 0


def leased_by_queue(session: Session, vo: str | None) -> dict[QueueId, LeasedJobs]:
    """Return the numbers of a VO's jobs with a lease by queue; None = of all VOs."""
    columns = JOBS.c.site, JOBS.c.ce, JOBS.c.queue, JOBS.c.vo, JOBS.c.state
    query = select(*columns, func.count()).where(_IS_LEASED).group_by(*columns)
    found: dict[QueueId, LeasedJobs] = {}
    for site, ce, name, of_vo, state, count in session.execute(query):
        if vo is not None and fold(of_vo) != fold(vo):
            continue
        queue = QueueId(site, ce, name)
        matched, running = found.get(queue, LeasedJobs())
        waits = JobState(state) is JobState.MATCHED
        found[queue] = LeasedJobs(matched + count, running) if waits else LeasedJobs(matched, running + count)
    return found
