"""Attempts in the database: who had a job, how it ended, what it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.leases import LOST_BY_SILENCE, AttemptRecord
from pilotage_server.core.reports import FACTS, JobReport
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import TAKEN, UNREPORTED

ATTEMPTS = metadata.tables["attempts"]

AttemptKey = tuple[int, int]
"""Job id and attempt."""

_SELECT = """SELECT job_id, attempt, pilot_stamp, site, ce, queue, node, slot, cpus, weight,
    charged_vo, charged_group, charged_owner, matched, ended, outcome, reason, reported, metered, plugged
    FROM attempts"""
_OF_JOBS = f"{_SELECT} WHERE job_id = ANY(?)"
_SITES = "SELECT DISTINCT job_id, site FROM attempts WHERE job_id = ANY(?) AND site <> ''"
_HISTORY = f"{_SELECT} WHERE job_id = ? ORDER BY attempt"
_UNREPORTED = f"{_SELECT} WHERE pilot_stamp = ? AND {UNREPORTED} ORDER BY job_id, attempt"
_NEXT = f"{_SELECT} WHERE pilot_stamp = ? AND {{}} AND (job_id, attempt) > (?, ?) ORDER BY job_id, attempt LIMIT ?"
_NEXT_UNREPORTED, _NEXT_TAKEN = _NEXT.format(UNREPORTED), _NEXT.format(TAKEN)
_TAKEN = f"{_SELECT} WHERE pilot_stamp = ANY(?) AND {TAKEN} AND ended >= ? ORDER BY job_id, attempt"
_METERED = f"""SELECT charged_vo, charged_group, charged_owner, weight, metered, count(*) FROM attempts
    WHERE {UNREPORTED} AND ended IS NULL AND metered IS NOT NULL
    GROUP BY charged_vo, charged_group, charged_owner, weight, metered"""  # noqa: S608
_COUNTS = f"SELECT pilot_stamp, count(*) FROM attempts WHERE {UNREPORTED} AND ended IS NULL GROUP BY pilot_stamp"  # noqa: S608
_CLOSE = "UPDATE attempts SET reported = ? WHERE job_id = ? AND attempt = ? AND ended IS NOT NULL AND outcome = ANY(?)"

_queue = lru_cache(maxsize=4096)(QueueId)
_account = lru_cache(maxsize=4096)(Account)


def insert_attempts(session: Session, attempts: Sequence[AttemptRecord]) -> None:
    """Store new attempts, which hold their leases."""
    columns: dict[str, Sequence[Any]] = {
        "job_id": [each.job_id for each in attempts],
        "attempt": [each.attempt for each in attempts],
        "pilot_stamp": [each.pilot_stamp for each in attempts],
        "site": [each.queue.site for each in attempts],
        "ce": [each.queue.ce for each in attempts],
        "queue": [each.queue.queue for each in attempts],
        "node": [each.node for each in attempts],
        "slot": [each.slot for each in attempts],
        "cpus": [each.cpus for each in attempts],
        "weight": [each.weight for each in attempts],
        "charged_vo": [each.account.vo for each in attempts],
        "charged_group": [each.account.group for each in attempts],
        "charged_owner": [each.account.owner for each in attempts],
        "matched": [each.matched for each in attempts],
        "metered": [each.metered for each in attempts],
    }
    columns |= {name: [value] * len(attempts) for name, value in _UNSET.items()}
    many_rows.add(session, ATTEMPTS, columns)


_UNSET: dict[str, Any] = {
    "outcome": "",
    "reason": "",
    "cpu_s": 0.0,
    "wall_s": 0.0,
    "suspended_s": 0.0,
    "peak_memory_mib": 0,
    "reported": False,
}


class Charge(NamedTuple):
    """What an attempt uses, and who is charged for it: so many cores, for `weight` a second."""

    cpus: int
    weight: float
    account: Account


_PLACE = "attempt, pilot_stamp, site, ce, queue, node, slot"
_BEGIN = f"""
    INSERT INTO attempts (job_id, {_PLACE}, cpus, weight, charged_vo, charged_group, charged_owner, matched, metered,
        {", ".join(_UNSET)})
    SELECT id, {_PLACE}, ?, ?, ?, ?, ?, ?, ?, {", ".join("?" for _ in _UNSET)} FROM jobs WHERE id = ANY(?)
"""  # noqa: S608 - names of columns


def begin_attempts(session: Session, charged: Mapping[Charge, Sequence[int]], now: datetime) -> None:
    """Store the attempts of jobs that have just been bound, which are given by what they are charged for."""
    time = bulk.moment(session, now)
    for (cpus, weight, account), job_ids in charged.items():
        payer = account.vo, account.group, account.owner
        many_rows.add_for(session, _BEGIN, (cpus, weight, *payer, time, time, *_UNSET.values()), job_ids)


def load_attempts(session: Session, keys: Iterable[AttemptKey]) -> dict[AttemptKey, AttemptRecord]:
    """Return the attempts by job and number; those that there are not are left out."""
    wanted = set(keys)
    if not wanted:
        return {}
    rows = bulk.rows(session, _OF_JOBS, sorted({job_id for job_id, _ in wanted}))
    return {(row[0], row[1]): _record(row) for row in rows if (row[0], row[1]) in wanted}


def load_attempts_of(session: Session, job_ids: Iterable[int]) -> list[AttemptRecord]:
    """Return all attempts of these jobs."""
    return list(map(_record, bulk.rows(session, _OF_JOBS, sorted(set(job_ids)))))


def sites_of(session: Session, job_ids: Iterable[int]) -> dict[int, set[str]]:
    """Return at which sites these jobs are or were, by job; those that were at no site of the tree are left out."""
    found: dict[int, set[str]] = {}
    for job_id, site in bulk.rows(session, _SITES, sorted(set(job_ids))):
        found.setdefault(job_id, set()).add(site)
    return found


def load_history(session: Session, job_id: int) -> tuple[AttemptRecord, ...]:
    """Return all attempts of a job, the first one first."""
    return tuple(map(_record, bulk.rows(session, _HISTORY, job_id)))


def load_unreported(session: Session, pilot_stamp: str) -> tuple[AttemptRecord, ...]:
    """Return the attempts that a pilot has still to answer for: those it holds, and those that were taken from it."""
    return tuple(map(_record, bulk.rows(session, _UNREPORTED, pilot_stamp)))


def next_unreported(session: Session, pilot_stamp: str, after: AttemptKey, most: int) -> tuple[AttemptRecord, ...]:
    """Return the first of these, at most so many, that come after one by job and attempt."""
    return tuple(map(_record, bulk.rows(session, _NEXT_UNREPORTED, pilot_stamp, *after, most)))


def next_taken(session: Session, pilot_stamp: str, after: AttemptKey, most: int) -> tuple[AttemptRecord, ...]:
    """Return the first of those that were taken from the pilot, at most so many, that come after one."""
    return tuple(map(_record, bulk.rows(session, _NEXT_TAKEN, pilot_stamp, *after, most)))


def load_taken(session: Session, stamps: Iterable[str], since: datetime) -> tuple[AttemptRecord, ...]:
    """Return the attempts that were taken from these pilots since then, and that they have still to answer for."""
    return tuple(map(_record, bulk.rows(session, _TAKEN, sorted(stamps), bulk.moment(session, since))))


def count_live(session: Session) -> dict[str, int]:
    """Return how many attempts with a lease each pilot has, by stamp."""
    return dict(map(tuple, bulk.rows(session, _COUNTS)))


class Metered(NamedTuple):
    """So many runs that use something, each of so many weighted cores, since the same moment."""

    account: Account
    weight: float
    since: datetime
    runs: int


def load_metered(session: Session) -> list[Metered]:
    """Return what uses something now, for somebody to be charged for: those that are alike together."""
    rows = bulk.rows(session, _METERED)
    return [Metered(_account(*owner), weight, bulk.time_of(since), runs) for *owner, weight, since, runs in rows]


def facts(report: JobReport) -> dict[str, Any]:
    """Return the columns that keep what a pilot says of an attempt: numbers and times."""
    told = {name: getattr(report, name) for name in FACTS}
    return told if report.started is None else told | {"started": report.started}


def change_attempts(session: Session, changes: Mapping[AttemptKey, Mapping[str, Any]]) -> None:
    """Give each of the attempts its own values in these columns."""
    alike: dict[tuple[str, ...], list[AttemptKey]] = {}
    for key, values in changes.items():
        alike.setdefault(tuple(values), []).append(key)
    for names, keys in alike.items():
        rows = [changes[key] for key in keys]
        change_columns(session, keys, {name: [row[name] for row in rows] for name in names})


def change_columns(session: Session, keys: Sequence[AttemptKey], columns: many_rows.Columns) -> None:
    """Give attempts the values of these columns, one each."""
    where = {"job_id": [job_id for job_id, _ in keys], "attempt": [attempt for _, attempt in keys]}
    many_rows.change(session, ATTEMPTS, where, columns)


def mark_trials(session: Session, keys: Sequence[AttemptKey]) -> None:
    """Note that the attempts are trials of the throttled places that they are at."""
    change_columns(session, keys, {"trial": [True] * len(keys)})


def close(session: Session, key: AttemptKey) -> None:
    """Ask its pilot no more for an attempt that was lost by silence: its word would come too late."""
    bulk.once(session, _CLOSE, True, *key, sorted(LOST_BY_SILENCE))


def _record(row: Sequence[Any]) -> AttemptRecord:
    """Return the record of one row of _SELECT."""
    job_id, attempt, stamp, site, ce, queue, node, slot, cpus, weight, vo, group, owner, *times_and_end = row
    matched, ended, outcome, reason, reported, metered, plugged = times_and_end
    return AttemptRecord(
        job_id,
        attempt,
        stamp,
        _queue(site, ce, queue),
        node,
        slot,
        cpus,
        weight,
        _account(vo, group, owner),
        bulk.time_of(matched),
        ended and bulk.time_of(ended),
        outcome,
        reason,
        bool(reported),
        metered and bulk.time_of(metered),
        bool(plugged),
    )
