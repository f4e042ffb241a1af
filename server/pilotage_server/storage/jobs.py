"""Jobs in the database: reading, transitions of many jobs at once, submission in few statements, and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import RowMapping, Table, select
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage.job_description import render_text
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.jobs.record import Awaited, ExitCheck, JobRecord, PolicyWatch
from pilotage_server.core.jobs.states import (
    NEVER_HELD,
    JobState,
    history_from_json,
    history_to_json,
)
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import LIVE_JOB, metadata

JOBS = metadata.tables["jobs"]


_COLUMNS = """
    id, template_id, cluster, process, owner, vo, "group", name, state, reason, priority, task_queue_id, pool_id,
    attempt, spent_attempts, lease_s, lease_until, pilot_stamp, site, ce, queue, node, slot, exit_code, signal,
    submitted, started, ended, state_since, starts, wall_clock_s, suspended_s, hold_code, hold_subcode,
    hold_history_json, watch, race, max_starts, fenced_until, attempt_floor, exit_check, completions,
    awaited, blocked_by
"""
_NAMES = tuple(name.strip(' "\n') for name in _COLUMNS.split(","))
_SELECT = f"SELECT {_COLUMNS} FROM jobs WHERE id = ANY(?) ORDER BY id"  # noqa: S608 - names of ours

_STATES = {state.value: state for state in JobState}
_WATCHES = {watch.value: watch for watch in PolicyWatch}
_EXIT_CHECKS = {check.value: check for check in ExitCheck}
_AWAITED = {awaited.value: awaited for awaited in Awaited}
_queue = lru_cache(maxsize=4096)(QueueId)


def load_jobs(session: Session, ids: Iterable[int]) -> dict[int, JobRecord]:
    """Return the existing ones of these jobs, by id."""
    wanted = sorted(set(ids))
    return {row[0]: _record(row) for row in sql.rows(session, _SELECT, wanted)} if wanted else {}


def job_record(row: RowMapping) -> JobRecord:
    """Return the record of one row of `jobs`."""
    return _record([row[name] for name in _NAMES])


def _record(row: Sequence[Any]) -> JobRecord:
    """Return the record of one row of _COLUMNS; times may come from the driver or from SQLAlchemy."""
    id_, template_id, cluster, process, owner, vo, group, name, state, reason, priority = row[:11]
    task_queue_id, pool_id, attempt, spent, lease_s, lease_until = row[11:17]
    stamp, site, ce, queue, node, slot, exit_code, signal, submitted, started, ended, state_since = row[17:29]
    starts, wall_clock_s, suspended_s, hold_code, hold_subcode, history, watch, race, max_starts = row[29:38]
    fenced, floor, exit_check, completions, awaited, blocked_by = row[38:]
    return JobRecord(
        id_,
        template_id,
        cluster,
        process,
        owner,
        vo,
        group,
        render_text(name, cluster, process),
        _STATES[state],
        reason,
        priority,
        task_queue_id,
        pool_id,
        attempt,
        spent,
        timedelta(seconds=lease_s) if lease_s else None,
        lease_until and sql.utc_time(lease_until),
        stamp,
        _queue(site, ce, queue) if site else None,
        node,
        slot,
        exit_code,
        signal,
        sql.utc_time(submitted),
        started and sql.utc_time(started),
        ended and sql.utc_time(ended),
        state_since and sql.utc_time(state_since),
        starts,
        timedelta(seconds=wall_clock_s),
        timedelta(seconds=suspended_s),
        hold_code,
        hold_subcode,
        history_from_json(history) if history else NEVER_HELD,
        _WATCHES[watch],
        race,
        max_starts,
        fenced and sql.utc_time(fenced),
        floor,
        _EXIT_CHECKS[exit_check],
        completions,
        _AWAITED[awaited],
        blocked_by,
    )


def compare_and_set(session: Session, before: Sequence[JobRecord], changes: Sequence[Mapping[str, Any]]) -> set[int]:
    """Update fields of jobs, each with its own values, if state and attempt are as loaded; return the updated ids."""
    alike: dict[tuple[str, ...], tuple[list[JobRecord], list[Mapping[str, Any]]]] = {}
    for job, values in zip(before, changes, strict=True):
        jobs, rows = alike.setdefault(tuple(values), ([], []))
        jobs.append(job)
        rows.append(values)
    moved: set[int] = set()
    for names, (jobs, rows) in alike.items():
        where: sql.Columns = {
            "id": [job.id for job in jobs],
            "state": [job.state._value_ for job in jobs],
            "attempt": [job.attempt for job in jobs],
        }
        to = _all_columns({name: [row[name] for row in rows] for name in names})
        moved |= sql.update_rows_if(session, JOBS, where, to)
    return moved


def change_locked(session: Session, ids: Sequence[int], fields: Mapping[str, Sequence[Any]]) -> None:
    """Update fields of locked jobs, one value for each job."""
    sql.update_rows(session, JOBS, {"id": ids}, _all_columns(fields))


def _all_columns(fields: Mapping[str, Sequence[Any]]) -> sql.Columns:
    columns: dict[str, Sequence[Any]] = {}
    for name, values in fields.items():
        columns |= _columns(name, values)
    return columns


def _columns(field: str, values: Sequence[Any]) -> sql.Columns:
    """Return the columns that store a field of many records."""
    if field == "queue":
        return {
            "site": [queue.site if queue else "" for queue in values],
            "ce": [queue.ce if queue else "" for queue in values],
            "queue": [queue.queue if queue else "" for queue in values],
        }
    if field not in _KEPT_AS:
        return {field: values}
    column, kept = _KEPT_AS[field]
    return {column: [kept(value) for value in values]}


_KEPT_AS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "state": ("state", lambda state: state._value_),
    "lease": ("lease_s", lambda lease: lease.total_seconds() if lease else 0.0),
    "wall_clock": ("wall_clock_s", timedelta.total_seconds),
    "suspended": ("suspended_s", timedelta.total_seconds),
    "hold_history": ("hold_history_json", history_to_json),
    "watch": ("watch", lambda watch: watch.value),
    "exit_check": ("exit_check", lambda check: check.value),
}
"""Fields that are stored in another form: the column, and the conversion of the value."""


@dataclass(frozen=True, slots=True)
class NewJobs:
    """New jobs, or arrays of jobs, of one task queue.

    `ids` (those of its jobs, consecutive), `clusters` (id and number of jobs of its cluster), `template_ids` and
    `names` have one item for each; names keep their macros, which are expanded when they are read. `blocked_by` has
    the block of each item; empty = none is blocked.
    """

    ids: Sequence[range]
    clusters: Sequence[tuple[int, int]]
    template_ids: Sequence[int]
    names: Sequence[str]
    state: JobState
    reason: str
    priority: int
    task_queue_id: int
    pool_id: str
    lease: timedelta | None
    watch: PolicyWatch = PolicyWatch.NEVER
    hold_code: int | None = None
    race_set: int = 0
    max_starts: int | None = None
    exit_check: ExitCheck = ExitCheck.NONE
    attempt_floor: int = 0
    blocked_by: Sequence[int] = ()


def take_ids(session: Session, count: int) -> range:
    """Reserve consecutive ids for so many new jobs."""
    if sql.is_sqlite(session):
        last = sql.rows(session, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
        first = last[0][0] + 1 if last else 1
    else:
        ((first, _, _),) = sql.rows(session, _TAKE, count)
    return range(first, first + count)


_IDS_LOCK = 7261538
"""Key of the advisory lock in PostgreSQL: any number that is not used otherwise in this database."""

_TAKE = f"""
    WITH locked AS MATERIALIZED (SELECT pg_advisory_lock({_IDS_LOCK}) IS NULL AS done),
        began AS MATERIALIZED (
            SELECT pg_get_serial_sequence('jobs', 'id') AS sequence, done, ?::bigint AS jobs FROM locked
        ),
        taken AS MATERIALIZED (SELECT sequence, nextval(sequence) AS first, done, jobs FROM began),
        moved AS MATERIALIZED (SELECT first, setval(sequence, first + jobs - 1) AS last FROM taken)
    SELECT first, last, pg_advisory_unlock({_IDS_LOCK}) FROM moved
"""  # noqa: S608 - a number of ours
"""Takes consecutive ids. Each step reads the one before it, so the lock is held while the sequence moves.

The lock ends with the statement, not with the transaction: other submissions wait for microseconds.
"""


def insert_jobs(session: Session, account: Account, new: Sequence[NewJobs], now: datetime) -> None:
    """Store jobs of an account."""
    columns: dict[str, list[Any]] = {name: [] for name in _new_columns(account, new[0], now)}
    for each in new:
        for name, values in _new_columns(account, each, now).items():
            columns[name] += values
    sql.insert_rows(session, JOBS, columns)
    for each in new:
        for ids in each.ids:
            if len(ids) > 1:
                sql.execute(session, _REST[sql.dialect_name(session)], list(ids[1:]), ids[0])


def _new_columns(account: Account, new: NewJobs, now: datetime) -> dict[str, Sequence[Any]]:
    """Return the rows of single jobs and of the first job of each array, or of its part."""
    alike: dict[str, Any] = {
        "owner": account.owner,
        "vo": account.vo,
        "group": account.group,
        "state": new.state.value,
        "reason": new.reason,
        "priority": new.priority,
        "task_queue_id": new.task_queue_id,
        "pool_id": new.pool_id,
        "lease_s": new.lease.total_seconds() if new.lease else 0.0,
        "submitted": now,
        "watch": new.watch.value,
        "race_set": new.race_set,
        "max_starts": new.max_starts or 0,
        "exit_check": new.exit_check.value,
        "attempt_floor": new.attempt_floor,
        "hold_code": new.hold_code,
        "hold_subcode": None if new.hold_code is None else 0,
        "hold_history_json": "" if new.hold_code is None else history_to_json(NEVER_HELD.with_hold(new.hold_code)),
    }
    firsts = [ids[0] for ids in new.ids]
    own = {
        "id": firsts,
        "cluster": [cluster for cluster, _ in new.clusters],
        "process": [first - cluster for first, (cluster, _) in zip(firsts, new.clusters, strict=True)],
        "cluster_jobs": [jobs for _, jobs in new.clusters],
        "template_id": new.template_ids,
        "name": new.names,
        "blocked_by": new.blocked_by or [0] * len(firsts),
    }
    return own | {name: [value] * len(new.ids) for name, value in (_UNSET | alike).items()}


_UNSET: dict[str, Any] = {
    "attempt": 0,
    "spent_attempts": 0,
    "pilot_stamp": "",
    "site": "",
    "ce": "",
    "queue": "",
    "node": "",
    "slot": "",
}


def _copying(table: Table, numbers: str) -> str:
    """Return the statement that stores the other jobs of an array, given their ids and the id of the first one."""
    # The database copies the first row, so an array is one statement with hardly any traffic.
    names = [column.name for column in table.c if column.name not in {"id", "process"}]
    listed, copied = (", ".join(f'{of}"{name}"' for name in names) for of in ("", "jobs."))
    return f"""
        INSERT INTO jobs (id, process, {listed}) SELECT numbers.id, jobs.process + numbers.nth, {copied}
        FROM {numbers} CROSS JOIN jobs WHERE jobs.id = ? ORDER BY numbers.nth
    """  # noqa: S608 - names of columns


_REST = {
    "sqlite": _copying(JOBS, "(SELECT value AS id, key + 1 AS nth FROM json_each(?)) AS numbers"),
    "postgresql": _copying(JOBS, "unnest(?::bigint[]) WITH ORDINALITY AS numbers (id, nth)"),
}


Item = TypeVar("Item")

CHUNK = 5000
"""Parameters of one statement stay below the databases' limits (SQLite 32,766, PostgreSQL 65,535)."""


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def load_job(session: Session, job_id: int) -> JobRecord:
    """Return one job; raises NotFoundError."""
    row = session.execute(select(JOBS).where(JOBS.c.id == job_id)).mappings().first()
    if row is None:
        raise NotFoundError("job", str(job_id))
    return job_record(row)


_LIVE = f"SELECT owner, count(*) FROM jobs WHERE vo = ? AND {LIVE_JOB} GROUP BY owner"  # noqa: S608 - our own text


def count_live_jobs(session: Session, vo: str) -> dict[str, int]:
    """Return the numbers of jobs of a VO that are not final, by owner."""
    return dict(sql.rows(session, _LIVE, vo))
