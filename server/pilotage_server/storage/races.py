"""Races in the database: the jobs that take part in them, and what is kept of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, select, text
from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.races import Race, is_copy_in
from pilotage_server.storage import bulk
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import OPEN_RACE, RACING_JOB
from pilotage_server.storage.unit import OvertakenError

RACES = metadata.tables["races"]

_RACERS = f"SELECT id FROM jobs WHERE race = ANY(?) AND {RACING_JOB} ORDER BY id"  # noqa: S608 - of our own texts only
_LOCKED = f"{_RACERS} FOR UPDATE SKIP LOCKED"
_COLUMNS = 'job_id, vo, "group", owner, began, reason, copies, first_copy, attempt, ended, winner, outcome, lost_core_s'
_LOAD = f"SELECT {_COLUMNS} FROM races WHERE job_id = ANY(?)"  # noqa: S608
_OPEN = f"{_LOAD} AND ended IS NULL"
_ALL_OPEN = f"SELECT {_COLUMNS} FROM races WHERE {OPEN_RACE} ORDER BY job_id"  # noqa: S608
_BEGIN = f"""
    INSERT INTO races ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, NULL, 0, '', 0)
    ON CONFLICT (job_id) DO UPDATE SET
        began = excluded.began, reason = excluded.reason, copies = 1, first_copy = excluded.first_copy,
        attempt = excluded.attempt, ended = NULL, winner = 0, outcome = ''
"""  # noqa: S608
_GO_ON = """
    UPDATE races SET copies = copies + 1, attempt = ?, began = CASE WHEN ended IS NULL THEN began ELSE ? END,
        ended = NULL, outcome = ''
    WHERE job_id = ?
"""
_CLOSE = "UPDATE races SET attempt = ?, ended = ?, winner = ?, outcome = ?, lost_core_s = ? WHERE job_id = ?"
_ENTER = "UPDATE jobs SET race = ?, cluster = ?, process = ?, reason = ? WHERE id = ?"
_LEAD = "UPDATE jobs SET race = id WHERE id = ?"
_LEAVE = "UPDATE jobs SET race = 0 WHERE id = ANY(?) AND race = id"
_LOSSES = 'SELECT vo, "group", owner, sum(lost_core_s) FROM races WHERE ended >= ? GROUP BY vo, "group", owner'
_PLACE = "pilot_stamp, site, ce, queue, node, slot, cpus, matched, started, ended, exit_code, signal"
_USED = "cpu_s, wall_s, suspended_s, peak_memory_mib, charged_vo, charged_group, charged_owner"
_BRING_ATTEMPT = f"""
    INSERT INTO attempts (job_id, attempt, {_PLACE}, {_USED}, outcome, reason, reported, weight, metered)
    SELECT ?, ?, {_PLACE}, {_USED}, outcome, ?, reported, 0, NULL FROM attempts WHERE job_id = ? AND attempt = ?
"""  # noqa: S608
_BRING_OUTPUT = """
    INSERT INTO output_files (job_id, attempt, name, checksum, size, truncated)
    SELECT ?, ?, name, checksum, size, truncated FROM output_files WHERE job_id = ? AND attempt = ?
"""


def lock_racers(session: Session, races: Iterable[int]) -> dict[int, list[JobRecord]]:
    """Return the jobs of these races, each by id, and let nobody else move them; copies of former races are among them.

    Who ends a race has locked one of these jobs before, which may be any, so he waits for nobody here.

    Raises
    ------
    OvertakenError
        Somebody else is moving one of them.
    """
    wanted = sorted(set(races))
    locked = {row[0] for row in bulk.rows(session, _LOCKED, wanted)}
    if locked != {row[0] for row in bulk.rows(session, _RACERS, wanted)}:
        raise OvertakenError("others are in the same race")
    found: dict[int, list[JobRecord]] = {}
    for job in load_jobs(session, locked).values():
        found.setdefault(job.race, []).append(job)
    return found


def load_rivals(session: Session, races: Iterable[Race]) -> dict[int, list[JobRecord]]:
    """Return the copies in these races by the ids of the originals, each by id; those of former races are left out."""
    known = {race.job_id: race for race in races}
    ids = [row[0] for row in bulk.rows(session, _RACERS, sorted(known))]
    found: dict[int, list[JobRecord]] = {}
    for job in load_jobs(session, ids).values():
        if is_copy_in(job, known[job.race]):
            found.setdefault(job.race, []).append(job)
    return found


def load_open(session: Session, races: Iterable[int]) -> dict[int, Race]:
    """Return those of the races that go on, by the ids of their originals."""
    return {row[0]: race_of(row) for row in bulk.rows(session, _OPEN, sorted(set(races)))}


class RaceQuery(NamedTuple):
    """Which races: of this owner and VO, None = of any; of these originals, none named = of any; those that go on."""

    owner: str | None
    vo: str | None
    job_ids: tuple[int, ...] = ()
    open_only: bool = False


class RaceCost(NamedTuple):
    """So many races of an account have ended, of which copies have won some, and what that has cost in core seconds."""

    account: Account
    races: int
    won_by_copies: int
    lost_core_s: float


def load_all_open(session: Session) -> dict[int, Race]:
    """Return all races that go on, by the ids of their originals."""
    return {row[0]: race_of(row) for row in bulk.rows(session, _ALL_OPEN)}


def find_races(session: Session, wanted: RaceQuery, before_id: int, limit: int) -> list[Race]:
    """Return at most `limit` races of originals with ids below `before_id` (0 = of any), the newest original first."""
    query = select(RACES).order_by(RACES.c.job_id.desc()).limit(limit)
    if before_id:
        query = query.where(RACES.c.job_id < before_id)
    if wanted.open_only:
        query = query.where(text(OPEN_RACE))
    rows = session.execute(query.where(*_conditions(wanted))).mappings()
    return [Race(*(row[name] for name in Race._fields)) for row in rows]


def sum_costs(session: Session, wanted: RaceQuery) -> tuple[RaceCost, ...]:
    """Return what these races have cost that have ended, by account."""
    account = RACES.c.vo, RACES.c.group, RACES.c.owner
    by_copies = func.sum(case((RACES.c.winner.in_((0, RACES.c.job_id)), 0), else_=1))
    query = select(*account, func.count(), by_copies, func.sum(RACES.c.lost_core_s)).where(RACES.c.ended.is_not(None))
    rows = session.execute(query.where(*_conditions(wanted)).group_by(*account).order_by(*account))
    return tuple(RaceCost(Account(*row[:3]), *row[3:]) for row in rows)


def sum_losses_since(session: Session, since: datetime) -> dict[Account, float]:
    """Return what races have cost that have ended since then, in core seconds, by the owners of the jobs."""
    rows = bulk.rows(session, _LOSSES, bulk.moment(session, since))
    return {Account(vo, group, owner): lost for vo, group, owner, lost in rows}


def _conditions(wanted: RaceQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [RACES.c.job_id.in_(wanted.job_ids)] if wanted.job_ids else []
    for column, value in ((RACES.c.owner, wanted.owner), (RACES.c.vo, wanted.vo)):
        if value is not None:
            conditions.append(column == value)
    return conditions


def race_of(row: Sequence[Any]) -> Race:
    """Return the race of one row of its columns."""
    job_id, vo, group, owner, began, reason, copies, first_copy, attempt, ended, *end = row
    copied = reason, copies, first_copy, attempt
    return Race(job_id, vo, group, owner, bulk.time_of(began), *copied, ended and bulk.time_of(ended), *end)


def load_last(session: Session, job_ids: Iterable[int]) -> dict[int, Race]:
    """Return the last race of each of these jobs, by the ids of the originals, also those that have ended."""
    return {row[0]: race_of(row) for row in bulk.rows(session, _LOAD, sorted(set(job_ids)))}


def enter(session: Session, original: JobRecord, copy_id: int, reason: str, now: datetime, *, goes_on: bool) -> None:
    """Let a new job be a copy of another, which is locked, in a race that begins now or `goes_on`."""
    why = f"copy of job {original.id}: {reason}"
    bulk.once(session, _ENTER, original.id, original.cluster, original.process, why, copy_id)
    bulk.once(session, _LEAD, original.id)
    since = bulk.moment(session, now)
    if goes_on:
        bulk.once(session, _GO_ON, original.attempt, since, original.id)
    else:
        whose = original.vo, original.group, original.owner
        bulk.once(session, _BEGIN, original.id, *whose, since, reason, copy_id, original.attempt)


def close(session: Session, race: Race, now: datetime) -> None:
    """Note how a race has ended; its original, which is locked, races no more."""
    bulk.once(session, _LEAVE, [race.job_id])
    end = race.winner, race.outcome, race.lost_core_s
    bulk.once(session, _CLOSE, race.attempt, bulk.moment(session, now), *end, race.job_id)


def bring_home(session: Session, copy: AttemptKey, home: AttemptKey, reason: str) -> None:
    """Let the attempt of a copy that has won be one of the original's too, with its output; it is paid for once."""
    bulk.once(session, _BRING_ATTEMPT, *home, reason, *copy)
    bulk.once(session, _BRING_OUTPUT, *home, *copy)
