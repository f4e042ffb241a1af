"""Races and sets of repeatable jobs in the database; sets are read at a cost that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, select, text
from sqlmodel import Session

from pilotage.values.accounts import Account
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.races.races import Race, RaceSet, is_copy_in
from pilotage_server.core.races.stragglers import MAX_TAIL_JOBS, LiveJob, Sampled
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.tables import LIVE_REPEATABLE_JOB, OPEN_RACE, RACING_JOB, metadata
from pilotage_server.storage.database.transaction import WriteConflictError
from pilotage_server.storage.jobs import load_jobs

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
    """Lock and return the jobs of these races, each by id, with copies of former races.

    A transaction that ends a race has locked one of its jobs, any of them. So this does not wait for locks: waiting
    could be circular.

    Raises
    ------
    WriteConflictError
        Another transaction has locked one of them.
    """
    wanted = sorted(set(races))
    locked = {row[0] for row in sql.rows(session, _LOCKED, wanted)}
    if locked != {row[0] for row in sql.rows(session, _RACERS, wanted)}:
        raise WriteConflictError("another transaction has locked a job of the race")
    found: dict[int, list[JobRecord]] = {}
    for job in load_jobs(session, locked).values():
        found.setdefault(job.race, []).append(job)
    return found


def load_rivals(session: Session, races: Iterable[Race]) -> dict[int, list[JobRecord]]:
    """Return the copies of these races by the ids of the originals, without copies of former races."""
    known = {race.job_id: race for race in races}
    ids = [row[0] for row in sql.rows(session, _RACERS, sorted(known))]
    found: dict[int, list[JobRecord]] = {}
    for job in load_jobs(session, ids).values():
        if is_copy_in(job, known[job.race]):
            found.setdefault(job.race, []).append(job)
    return found


def load_open(session: Session, races: Iterable[int]) -> dict[int, Race]:
    """Return the open ones of the races, by the ids of their originals."""
    return {row[0]: race_of(row) for row in sql.rows(session, _OPEN, sorted(set(races)))}


class RaceQuery(NamedTuple):
    """A query of races: `owner`, `vo` None = any; `job_ids` = originals, empty = any; `open_only` = no ended ones."""

    owner: str | None
    vo: str | None
    job_ids: tuple[int, ...] = ()
    open_only: bool = False


class RaceCost(NamedTuple):
    """The ended races of an account: their number, how many copies have won, and their cost in core seconds."""

    account: Account
    races: int
    won_by_copies: int
    lost_core_s: float


def load_all_open(session: Session) -> dict[int, Race]:
    """Return all open races, by the ids of their originals."""
    return {row[0]: race_of(row) for row in sql.rows(session, _ALL_OPEN)}


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
    """Return the costs of ended races of the query, by account."""
    account = RACES.c.vo, RACES.c.group, RACES.c.owner
    by_copies = func.sum(case((RACES.c.winner.in_((0, RACES.c.job_id)), 0), else_=1))
    query = select(*account, func.count(), by_copies, func.sum(RACES.c.lost_core_s)).where(RACES.c.ended.is_not(None))
    rows = session.execute(query.where(*_conditions(wanted)).group_by(*account).order_by(*account))
    return tuple(RaceCost(Account(*row[:3]), *row[3:]) for row in rows)


def sum_losses_since(session: Session, since: datetime) -> dict[Account, float]:
    """Return the costs of races that ended since then, in core seconds, by account."""
    rows = sql.rows(session, _LOSSES, sql.column_time(session, since))
    return {Account(vo, group, owner): lost for vo, group, owner, lost in rows}


def _conditions(wanted: RaceQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [one_of(RACES.c.job_id, wanted.job_ids)] if wanted.job_ids else []
    for column, value in ((RACES.c.owner, wanted.owner), (RACES.c.vo, wanted.vo)):
        if value is not None:
            conditions.append(column == value)
    return conditions


def race_of(row: Sequence[Any]) -> Race:
    """Return the race of one row of _COLUMNS."""
    job_id, vo, group, owner, began, reason, copies, first_copy, attempt, ended, *end = row
    copied = reason, copies, first_copy, attempt
    return Race(job_id, vo, group, owner, sql.utc_time(began), *copied, ended and sql.utc_time(ended), *end)


def load_last(session: Session, job_ids: Iterable[int]) -> dict[int, Race]:
    """Return the last race, open or ended, of each of these jobs, by the ids of the originals."""
    return {row[0]: race_of(row) for row in sql.rows(session, _LOAD, sorted(set(job_ids)))}


def enter(session: Session, original: JobRecord, copy_id: int, reason: str, now: datetime, *, goes_on: bool) -> None:
    """Make a new job a copy of a locked job, in a race that begins now or `goes_on`."""
    why = f"copy of job {original.id}: {reason}"
    sql.execute(session, _ENTER, original.id, original.cluster, original.process, why, copy_id)
    sql.execute(session, _LEAD, original.id)
    since = sql.column_time(session, now)
    if goes_on:
        sql.execute(session, _GO_ON, original.attempt, since, original.id)
    else:
        whose = original.vo, original.group, original.owner
        sql.execute(session, _BEGIN, original.id, *whose, since, reason, copy_id, original.attempt)


def close(session: Session, race: Race, now: datetime) -> None:
    """Store the end of a race; its locked original leaves the race."""
    sql.execute(session, _LEAVE, [race.job_id])
    end = race.winner, race.outcome, race.lost_core_s
    sql.execute(session, _CLOSE, race.attempt, sql.column_time(session, now), *end, race.job_id)


def store_winner(session: Session, copy: AttemptKey, home: AttemptKey, reason: str) -> None:
    """Copy the attempt and the output files of a winning copy to the original; it is charged only once."""
    sql.execute(session, _BRING_ATTEMPT, *home, reason, *copy)
    sql.execute(session, _BRING_OUTPUT, *home, *copy)


_INSERT = """
    INSERT INTO race_sets (id, last_id, jobs, urgent, vo, "group", owner, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEXT = "SELECT id, last_id, jobs, urgent FROM race_sets WHERE id > ? ORDER BY id LIMIT ?"
_SAMPLE = "SELECT race_set, id, state, wall_clock_s FROM jobs WHERE id = ANY(?)"
_ALL_LIVE = f"""
    SELECT race_set, jobs.id, state FROM race_sets JOIN jobs ON jobs.race_set = race_sets.id
    WHERE race_sets.id = ANY(?) AND {LIVE_REPEATABLE_JOB} ORDER BY race_set, jobs.id
"""  # noqa: S608
_LIVE_AFTER = f"""
    SELECT race_set, id, state FROM jobs WHERE race_set = ? AND id > ? AND {LIVE_REPEATABLE_JOB} ORDER BY id LIMIT ?
"""  # noqa: S608
_IS_OVER = f"NOT EXISTS (SELECT 1 FROM jobs WHERE race_set = race_sets.id AND {LIVE_REPEATABLE_JOB})"  # noqa: S608
_OVER = f"""
    DELETE FROM race_sets WHERE id IN (SELECT id FROM race_sets WHERE created < ? AND {_IS_OVER} ORDER BY id LIMIT ?)
"""  # noqa: S608


def insert_set(session: Session, account: Account, new: RaceSet, now: datetime) -> None:
    """Store a new set of an account's jobs."""
    whose = account.vo, account.group, account.owner
    sql.execute(session, _INSERT, new.id, new.last_id, new.jobs, new.urgent, *whose, sql.column_time(session, now))


def next_sets(session: Session, after_id: int, limit: int) -> list[RaceSet]:
    """Return at most `limit` sets after this id, by id."""
    return [
        RaceSet(id_, last_id, jobs, bool(urgent))
        for id_, last_id, jobs, urgent in sql.rows(session, _NEXT, after_id, limit)
    ]


def samples(session: Session, asked: Mapping[int, Sequence[int]]) -> dict[int, list[Sampled]]:
    """Return states and run times of jobs, by set; `asked` = the ids of the jobs by set.

    Ids that are no jobs of the set are left out.
    """
    found: dict[int, list[Sampled]] = {set_id: [] for set_id in asked}
    wanted = {set_id: frozenset(ids) for set_id, ids in asked.items()}
    for set_id, id_, state, ran_s in sql.rows(session, _SAMPLE, sorted(frozenset().union(*wanted.values()))):
        if id_ in wanted.get(set_id, ()):
            found[set_id].append((JobState(state), timedelta(seconds=ran_s)))
    return found


def live_jobs(session: Session, sets: Iterable[RaceSet]) -> dict[int, list[LiveJob]]:
    """Return the live jobs of these sets, by set and id: at most the first MAX_TAIL_JOBS + 1 of each large set."""
    found: dict[int, list[LiveJob]] = {}
    small: list[int] = []
    for of in sets:
        found[of.id] = []
        if of.jobs <= MAX_TAIL_JOBS:
            small.append(of.id)
        else:
            found[of.id] = live_jobs_after(session, of, 0)
    for set_id, id_, state in sql.rows(session, _ALL_LIVE, small):
        found[set_id].append(LiveJob(id_, JobState(state)))
    return found


def live_jobs_after(session: Session, of: RaceSet, after_job: int) -> list[LiveJob]:
    """Return the live jobs of a set after this one, by id: the first MAX_TAIL_JOBS + 1."""
    rows = sql.rows(session, _LIVE_AFTER, of.id, after_job, MAX_TAIL_JOBS + 1)
    return [LiveJob(id_, JobState(state)) for _, id_, state in rows]


def delete_over(session: Session, created_before: datetime, limit: int) -> int:
    """Remove at most `limit` older sets whose jobs have all ended; return how many."""
    return sql.execute(session, _OVER, sql.column_time(session, created_before), limit)
