"""Attempts in the database: pilot, outcome and use of each attempt, and the evidence on locations from the feed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import LOST_BY_SILENCE, AttemptFacts, AttemptRecord
from pilotage_server.core.attempts.reports import FACTS, RUNNING_FACTS, JobReport, RunningUsage
from pilotage_server.core.health.black_holes import EvidenceKey
from pilotage_server.core.health.evidence import FAILURES, OUTLASTS_BY, AttemptGroup, RunningAttempts, RunningFilter
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import TAKEN, UNREPORTED, metadata

ATTEMPTS = metadata.tables["attempts"]

AttemptKey = tuple[int, int]
"""Job id and attempt."""

_COLUMNS = """job_id, attempt, pilot_stamp, site, ce, queue, node, slot, cpus, weight,
    charged_vo, charged_group, charged_owner, matched, ended, outcome, reason, reported, metered, plugged,
    gpus, started, cpu_s, wall_s, suspended_s"""
_SELECT = f"SELECT {_COLUMNS} FROM attempts"  # noqa: S608 - names of columns
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
_LAST_FACTS = f"""
    SELECT {_COLUMNS}, exit_code, signal, system_cpu_s, peak_memory_mib, peak_disk_mib FROM (
        SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY attempt DESC) AS place FROM attempts
        WHERE job_id = ANY(?)
    ) AS numbered WHERE place <= ? ORDER BY job_id, attempt
"""  # noqa: S608 - names of columns
_COUNTS = f"SELECT pilot_stamp, count(*) FROM attempts WHERE {UNREPORTED} AND ended IS NULL GROUP BY pilot_stamp"  # noqa: S608
_CLOSE = "UPDATE attempts SET reported = ? WHERE job_id = ? AND attempt = ? AND ended IS NOT NULL AND outcome = ANY(?)"

_queue = lru_cache(maxsize=4096)(QueueId)
_account = lru_cache(maxsize=4096)(Account)


def insert_attempts(session: Session, attempts: Sequence[AttemptRecord]) -> None:
    """Store new attempts that hold leases."""
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
        "gpus": [each.gpus for each in attempts],
        "weight": [each.weight for each in attempts],
        "charged_vo": [each.account.vo for each in attempts],
        "charged_group": [each.account.group for each in attempts],
        "charged_owner": [each.account.owner for each in attempts],
        "matched": [each.matched for each in attempts],
        "metered": [each.metered for each in attempts],
    }
    columns |= {name: [value] * len(attempts) for name, value in _UNSET.items()}
    sql.insert_rows(session, ATTEMPTS, columns)


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
    """The charge for an attempt: its cores and GPUs, the weighted cores that are charged, and the account."""

    cpus: int
    gpus: int
    weight: float
    account: Account


_PLACE = "attempt, pilot_stamp, site, ce, queue, node, slot"
_BEGIN = f"""
    INSERT INTO attempts (job_id, {_PLACE}, cpus, gpus, weight, charged_vo, charged_group, charged_owner, matched,
        metered, {", ".join(_UNSET)})
    SELECT id, {_PLACE}, ?, ?, ?, ?, ?, ?, ?, ?, {", ".join("?" for _ in _UNSET)} FROM jobs WHERE id = ANY(?)
"""  # noqa: S608 - names of columns


def begin_attempts(session: Session, charged: Mapping[Charge, Sequence[int]], now: datetime) -> None:
    """Store the attempts of jobs that have just been bound, given by their charges."""
    time = sql.column_time(session, now)
    for (cpus, gpus, weight, account), job_ids in charged.items():
        payer = account.vo, account.group, account.owner
        sql.insert_for_ids(session, _BEGIN, (cpus, gpus, weight, *payer, time, time, *_UNSET.values()), job_ids)


def load_attempts(session: Session, keys: Iterable[AttemptKey]) -> dict[AttemptKey, AttemptRecord]:
    """Return the existing ones of these attempts."""
    wanted = set(keys)
    if not wanted:
        return {}
    rows = sql.rows(session, _OF_JOBS, sorted({job_id for job_id, _ in wanted}))
    return {(row[0], row[1]): _record(row) for row in rows if (row[0], row[1]) in wanted}


def load_attempts_of(session: Session, job_ids: Iterable[int]) -> list[AttemptRecord]:
    """Return all attempts of these jobs."""
    return list(map(_record, sql.rows(session, _OF_JOBS, sorted(set(job_ids)))))


def sites_of(session: Session, job_ids: Iterable[int]) -> dict[int, set[str]]:
    """Return the sites of all attempts, by job; jobs that were at no site are left out."""
    found: dict[int, set[str]] = {}
    for job_id, site in sql.rows(session, _SITES, sorted(set(job_ids))):
        found.setdefault(job_id, set()).add(site)
    return found


def load_history(session: Session, job_id: int) -> tuple[AttemptRecord, ...]:
    """Return all attempts of a job, the first one first."""
    return tuple(map(_record, sql.rows(session, _HISTORY, job_id)))


def load_last_facts(session: Session, jobs: Sequence[JobRecord], most: int, now: datetime) -> list[AttemptFacts]:
    """Return at most `most` attempts of each job, its last ones, by job and number."""
    by_id = {job.id: job for job in jobs}
    found: list[AttemptFacts] = []
    for *columns, exit_code, signal, system_cpu_s, memory_mib, disk_mib in sql.rows(
        session, _LAST_FACTS, sorted(by_id), most
    ):
        record = _record(columns)
        times = record.cpu_s, system_cpu_s, record.wall_s, record.suspended_s
        usage = AttemptUsage(record.attempt, record.cpus, record.gpus, *times, memory_mib, disk_mib)
        if not record.reported:
            usage = usage.timed(by_id[record.job_id], record.started, record.ended, now)
        found.append(AttemptFacts(record, exit_code, signal, usage))
    return found


def load_unreported(session: Session, pilot_stamp: str) -> tuple[AttemptRecord, ...]:
    """Return the attempts that a pilot has not reported the end of: running ones, and those taken from it."""
    return tuple(map(_record, sql.rows(session, _UNREPORTED, pilot_stamp)))


def next_unreported(session: Session, pilot_stamp: str, after: AttemptKey, most: int) -> tuple[AttemptRecord, ...]:
    """Return at most `most` of these after the key `after`, in the order of keys."""
    return tuple(map(_record, sql.rows(session, _NEXT_UNREPORTED, pilot_stamp, *after, most)))


def next_taken(session: Session, pilot_stamp: str, after: AttemptKey, most: int) -> tuple[AttemptRecord, ...]:
    """Return at most `most` attempts after the key `after` that were taken from the pilot, in the order of keys."""
    return tuple(map(_record, sql.rows(session, _NEXT_TAKEN, pilot_stamp, *after, most)))


def load_taken(session: Session, stamps: Iterable[str], since: datetime) -> tuple[AttemptRecord, ...]:
    """Return the attempts that were taken from these pilots since then and whose end they have not reported."""
    return tuple(map(_record, sql.rows(session, _TAKEN, sorted(stamps), sql.column_time(session, since))))


def count_live(session: Session) -> dict[str, int]:
    """Return the number of attempts with a lease of each pilot, by stamp."""
    return dict(map(tuple, sql.rows(session, _COUNTS)))


class Metered(NamedTuple):
    """A number of running attempts of an account with the same weighted cores and the same begin of charging."""

    account: Account
    weight: float
    since: datetime
    runs: int


def load_metered(session: Session) -> list[Metered]:
    """Return the attempts that are charged now, equal ones together."""
    rows = sql.rows(session, _METERED)
    return [Metered(_account(*owner), weight, sql.utc_time(since), runs) for *owner, weight, since, runs in rows]


def facts(report: JobReport) -> dict[str, Any]:
    """Return the columns with a pilot's figures of an attempt: numbers and times."""
    columns = {name: getattr(report, name) for name in FACTS}
    if report.outcome is None:  # only ends have all figures: what a running attempt has used before stays
        columns = {name: value for name, value in columns.items() if value}
    return columns if report.started is None else columns | {"started": report.started}


def change_attempts(session: Session, changes: Mapping[AttemptKey, Mapping[str, Any]]) -> None:
    """Update attempts, each with its own columns and values."""
    alike: dict[tuple[str, ...], list[AttemptKey]] = {}
    for key, values in changes.items():
        alike.setdefault(tuple(values), []).append(key)
    for names, keys in alike.items():
        rows = [changes[key] for key in keys]
        change_columns(session, keys, {name: [row[name] for row in rows] for name in names})


def change_columns(session: Session, keys: Sequence[AttemptKey], columns: sql.Columns) -> None:
    """Update attempts in the same columns, one value for each attempt."""
    where = {"job_id": [job_id for job_id, _ in keys], "attempt": [attempt for _, attempt in keys]}
    sql.update_rows(session, ATTEMPTS, where, columns)


def store_running(session: Session, usages: Sequence[RunningUsage]) -> None:
    """Store what attempts have used before their end."""
    columns = {name: [getattr(each, name) for each in usages] for name in RUNNING_FACTS}
    change_columns(session, [each.key for each in usages], columns)


# A job may have had thousands of attempts.
_USAGES = """SELECT a.job_id, a.attempt, a.cpus, a.gpus, a.cpu_s, a.system_cpu_s, a.wall_s, a.suspended_s,
    a.peak_memory_mib, a.peak_disk_mib, a.started, a.ended, a.reported
    FROM jobs JOIN attempts a ON a.job_id = jobs.id AND a.attempt = jobs.attempt WHERE jobs.id = ANY(?)"""


def load_usages(session: Session, jobs: Iterable[JobRecord], now: datetime) -> dict[int, AttemptUsage]:
    """Return what the last attempt of each job has used, by job id; jobs that were never matched are left out."""
    matched = {job.id: job for job in jobs if job.attempt}
    found: dict[int, AttemptUsage] = {}
    if not matched:
        return found
    for job_id, attempt, *figures, started, ended, reported in sql.rows(session, _USAGES, sorted(matched)):
        job = matched[job_id]
        if attempt == job.attempt:
            usage = AttemptUsage(attempt, *figures)
            times = started and sql.utc_time(started), ended and sql.utc_time(ended)
            found[job_id] = usage if reported else usage.timed(job, *times, now)
    return found


def mark_trials(session: Session, keys: Sequence[AttemptKey]) -> None:
    """Mark the attempts as probes of the throttled locations that they run at."""
    change_columns(session, keys, {"trial": [True] * len(keys)})


def close(session: Session, key: AttemptKey) -> None:
    """Mark an attempt that was lost by silence as reported: a report of its pilot would come too late."""
    sql.execute(session, _CLOSE, True, *key, sorted(LOST_BY_SILENCE))


def _record(row: Sequence[Any]) -> AttemptRecord:
    """Return the record of one row of _SELECT."""
    job_id, attempt, stamp, site, ce, queue, node, slot, cpus, weight, vo, group, owner, *times_and_end = row
    matched, ended, outcome, reason, reported, metered, plugged, gpus, started, *seconds = times_and_end
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
        sql.utc_time(matched),
        ended and sql.utc_time(ended),
        outcome,
        reason,
        bool(reported),
        metered and sql.utc_time(metered),
        bool(plugged),
        gpus,
        started and sql.utc_time(started),
        *seconds,
    )


_SPOT = "site, ce, queue, node, charged_vo, charged_group, charged_owner"
_FAILURES = ", ".join(f"'{cause}'" for cause in sorted(FAILURES))
_FAILURE = f"SELECT 1 FROM job_events WHERE id > ? AND id <= ? AND cause IN ({_FAILURES}) LIMIT 1"  # noqa: S608
_ENDED = f"""
    SELECT {_SPOT}, trial, is_failure, count(*), max(matched), max(wall_s) FROM (
        SELECT {_SPOT}, trial, attempts.matched AS matched, attempts.wall_s AS wall_s, CASE
            WHEN attempts.outcome = 'start failed' THEN 1
            WHEN (attempts.outcome = 'exited' OR plugged) AND job_events.cause <> 'done' AND attempts.wall_s < ?
                AND (coalesce(attempts.exit_code, -1) <> 0 OR coalesce(attempts.signal, 0) <> 0) THEN 1
            ELSE 0 END AS is_failure
        FROM job_events JOIN attempts
            ON attempts.job_id = job_events.job_id AND attempts.attempt = job_events.attempt
        WHERE job_events.id > ? AND job_events.id <= ? AND (
            job_events.cause = 'plugged'
            OR job_events.cause IN ('done', {_FAILURES})
                AND job_events.from_state NOT IN ('RECEIVED', 'WAITING', 'RACING')
                AND attempts.outcome IN ('exited', 'start failed', 'limit exceeded') AND NOT plugged
        )
    ) AS ended
    GROUP BY {_SPOT}, trial, is_failure
"""  # noqa: S608 - names of columns
_RUNNING = f"""
    SELECT {_SPOT}, trial, min(begun),
        sum(CASE WHEN begun <= ? THEN 1 ELSE 0 END), max(CASE WHEN begun <= ? THEN matched END)
    FROM (
        SELECT {_SPOT}, trial, matched, CASE WHEN started > matched THEN started ELSE matched END AS begun
        FROM attempts WHERE {UNREPORTED} AND ended IS NULL AND NOT plugged AND started <= ? AND matched <= ?
            AND (trial OR site = ANY(?) OR charged_owner = ANY(?))
    ) AS running
    GROUP BY {_SPOT}, trial
"""  # noqa: S608


def has_failures(session: Session, after: int, up_to: int) -> bool:
    """Whether any attempt has failed in this part of the feed."""
    return bool(sql.rows(session, _FAILURE, after, up_to))


def load_ended(session: Session, after: int, up_to: int, fast: timedelta) -> list[AttemptGroup]:
    """Return the attempts that have ended by themselves in this part of the feed, equal ones together.

    A failure counts once, when it happens: not again at the end of its plug, nor when the copies of a failed original
    have failed too.
    """
    return list(map(_ended, sql.rows(session, _ENDED, fast.total_seconds(), after, up_to)))


def load_running(session: Session, fast: timedelta, now: datetime, wanted: RunningFilter) -> list[RunningAttempts]:
    """Return the running attempts that are probes or `wanted`; those that run for at least `fast` have lasted.

    The time counts from the match too, so that a wrong clock of a node cannot make it longer.
    """
    lasted, begun = (sql.column_time(session, now - least) for least in (fast, OUTLASTS_BY))
    values = lasted, lasted, begun, begun, sorted(wanted.sites), sorted(wanted.owners)
    return [_running(row, now) for row in sql.rows(session, _RUNNING, *values)]


def _running(row: Sequence[Any], now: datetime) -> RunningAttempts:
    *spot, trial, begun, count, matched = row
    where, longest = _evidence_key(spot), now - sql.utc_time(begun)
    lasted = AttemptGroup(where, False, count, sql.utc_time(matched), longest, bool(trial)) if count else None
    return RunningAttempts(where, longest, lasted)


def _ended(row: Sequence[Any]) -> AttemptGroup:
    *spot, trial, failed, count, matched, longest_s = row
    longest = timedelta(seconds=longest_s)
    return AttemptGroup(_evidence_key(spot), bool(failed), count, sql.utc_time(matched), longest, bool(trial))


def _evidence_key(row: Sequence[Any]) -> EvidenceKey:
    site, ce, queue, node, vo, group, owner = row
    return EvidenceKey(QueueId(site, ce, queue), node, Account(vo, group, owner))


class AttemptBook:
    """Attempts read together, changed in memory, and written together by `write`; changes are visible at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: dict[AttemptKey, AttemptRecord | None] = {}
        self._changes: dict[AttemptKey, dict[str, Any]] = {}
        self._unwritten: set[AttemptKey] = set()

    def read(self, keys: Iterable[AttemptKey]) -> None:
        """Read these attempts in one query."""
        new = [key for key in keys if key not in self._records]
        if new:
            found = load_attempts(self._session, new)
            self._records.update((key, found.get(key)) for key in new)

    def get(self, key: AttemptKey) -> AttemptRecord | None:
        """Return an attempt that was read; None = it does not exist."""
        record, changes = self._records[key], self._changes.get(key)
        return record if record is None or changes is None else record.changed(changes)

    def known(self, key: AttemptKey) -> AttemptRecord:
        """Return an attempt that was read and exists."""
        record = self.get(key)
        assert record is not None, "there is such an attempt"
        return record

    def change(self, key: AttemptKey, columns: Mapping[str, Any]) -> None:
        """Change columns of an attempt that was read and exists."""
        if not columns:
            return
        self._changes.setdefault(key, {}).update(columns)
        self._unwritten.add(key)

    def write(self) -> None:
        """Write all changes since the last call."""
        change_attempts(self._session, {key: self._changes[key] for key in self._unwritten})
        self._unwritten.clear()
