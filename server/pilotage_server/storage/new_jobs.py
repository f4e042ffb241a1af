"""New jobs in the database: the rows of a whole submission in a few statements, arrays made by the database itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table
from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.holds import NEVER_HELD, history_to_json
from pilotage_server.core.job_record import PolicyWatch
from pilotage_server.core.jobs import JobState
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.jobs import JOBS


@dataclass(frozen=True, slots=True)
class NewJobs:
    """What are to be jobs that wait together, or arrays of such jobs.

    `ids` (those of its jobs, in order), `template_ids` and `names` have one for each; names keep their macros until
    they are read.
    """

    ids: Sequence[Sequence[int]]
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


def take_ids(session: Session, count: int) -> Sequence[int]:
    """Return ids for so many new jobs, rising, which nobody else gets."""
    if bulk.is_sqlite(session):
        last = bulk.rows(session, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
        first = last[0][0] + 1 if last else 1
        return range(first, first + count)
    taken = "SELECT nextval(pg_get_serial_sequence('jobs', 'id')) FROM generate_series(1, ?)"
    return sorted(row[0] for row in bulk.rows(session, taken, count))


def insert_jobs(session: Session, account: Account, new: Sequence[NewJobs], now: datetime) -> None:
    """Store jobs of an account."""
    columns: dict[str, list[Any]] = {name: [] for name in _columns(account, new[0], now)}
    for each in new:
        for name, values in _columns(account, each, now).items():
            columns[name] += values
    many_rows.add(session, JOBS, columns)
    for each in new:
        for ids in each.ids:
            if len(ids) > 1:
                bulk.once(session, _REST[bulk.dialect_name(session)], list(ids[1:]), ids[0])


def _columns(account: Account, new: NewJobs, now: datetime) -> dict[str, Sequence[Any]]:
    """Return the rows of the jobs, and of each array's first one, whose id is the array's number."""
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
        "hold_code": new.hold_code,
        "hold_subcode": None if new.hold_code is None else 0,
        "hold_history_json": "" if new.hold_code is None else history_to_json(NEVER_HELD.begun(new.hold_code)),
    }
    firsts = [ids[0] for ids in new.ids]
    own = {"id": firsts, "cluster": firsts, "template_id": new.template_ids, "name": new.names}
    return own | {name: [value] * len(new.ids) for name, value in (_UNSET | alike).items()}


_UNSET: dict[str, Any] = {
    "process": 0,
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
    """Return the statement that stores the other jobs of an array, given their ids and that of the first one."""
    # The database copies the first row, so an array of 100,000 jobs is one statement and hardly any traffic.
    names = [column.name for column in table.c if column.name not in {"id", "process"}]
    listed, copied = (", ".join(f'{of}"{name}"' for name in names) for of in ("", "jobs."))
    return f"""
        INSERT INTO jobs (id, process, {listed}) SELECT numbers.id, numbers.process, {copied}
        FROM {numbers} CROSS JOIN jobs WHERE jobs.id = ? ORDER BY numbers.process
    """  # noqa: S608 - names of columns


_REST = {
    "sqlite": _copying(JOBS, "(SELECT value AS id, key + 1 AS process FROM json_each(?)) AS numbers"),
    "postgresql": _copying(JOBS, "unnest(?::bigint[]) WITH ORDINALITY AS numbers (id, process)"),
}
