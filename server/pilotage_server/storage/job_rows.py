"""Rows of jobs: the records that they stand for, and what steps make of many of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import RowMapping
from sqlmodel import Session

from pilotage.job_macros import render_text
from pilotage.resource_tree import QueueId
from pilotage_server.core.holds import NEVER_HELD, history_from_json, history_to_json
from pilotage_server.core.job_record import JobRecord, PolicyWatch
from pilotage_server.core.jobs import JobState
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.tables import metadata

JOBS = metadata.tables["jobs"]

_COLUMNS = """
    id, template_id, cluster, process, owner, vo, "group", name, state, reason, priority, task_queue_id, pool_id,
    attempt, spent_attempts, lease_s, lease_until, pilot_stamp, site, ce, queue, node, slot, exit_code, signal,
    submitted, started, ended, state_since, starts, wall_clock_s, suspended_s, hold_code, hold_subcode,
    hold_history_json, watch, race
"""
_NAMES = tuple(name.strip(' "\n') for name in _COLUMNS.split(","))
_SELECT = f"SELECT {_COLUMNS} FROM jobs WHERE id = ANY(?) ORDER BY id"  # noqa: S608 - names of ours

_STATES = {state.value: state for state in JobState}
_WATCHES = {watch.value: watch for watch in PolicyWatch}
_queue = lru_cache(maxsize=4096)(QueueId)


def load_jobs(session: Session, ids: Iterable[int]) -> dict[int, JobRecord]:
    """Return the jobs by id; ids that there are not are left out."""
    wanted = sorted(set(ids))
    return {row[0]: _record(row) for row in bulk.rows(session, _SELECT, wanted)} if wanted else {}


def job_record(row: RowMapping) -> JobRecord:
    """Return the record of one row of `jobs`."""
    return _record([row[name] for name in _NAMES])


def _record(row: Sequence[Any]) -> JobRecord:
    """Return the record of one row of _COLUMNS, with times as the driver or as SQLAlchemy gives them."""
    id_, template_id, cluster, process, owner, vo, group, name, state, reason, priority = row[:11]
    task_queue_id, pool_id, attempt, spent, lease_s, lease_until = row[11:17]
    stamp, site, ce, queue, node, slot, exit_code, signal, submitted, started, ended, state_since = row[17:29]
    starts, wall_clock_s, suspended_s, hold_code, hold_subcode, history, watch, race = row[29:]
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
        lease_until and bulk.time_of(lease_until),
        stamp,
        _queue(site, ce, queue) if site else None,
        node,
        slot,
        exit_code,
        signal,
        bulk.time_of(submitted),
        started and bulk.time_of(started),
        ended and bulk.time_of(ended),
        state_since and bulk.time_of(state_since),
        starts,
        timedelta(seconds=wall_clock_s),
        timedelta(seconds=suspended_s),
        hold_code,
        hold_subcode,
        history_from_json(history) if history else NEVER_HELD,
        _WATCHES[watch],
        race,
    )


def compare_and_set(session: Session, before: Sequence[JobRecord], changes: Sequence[Mapping[str, Any]]) -> set[int]:
    """Change fields of jobs, each in its own way, where they still are as loaded; return the ids of those that were.

    State and attempt are what is compared.
    """
    alike: dict[tuple[str, ...], tuple[list[JobRecord], list[Mapping[str, Any]]]] = {}
    for job, values in zip(before, changes, strict=True):
        jobs, rows = alike.setdefault(tuple(values), ([], []))
        jobs.append(job)
        rows.append(values)
    moved: set[int] = set()
    for names, (jobs, rows) in alike.items():
        where: many_rows.Columns = {
            "id": [job.id for job in jobs],
            "state": [job.state._value_ for job in jobs],
            "attempt": [job.attempt for job in jobs],
        }
        to = _all_columns({name: [row[name] for row in rows] for name in names})
        moved |= many_rows.change_if(session, JOBS, where, to)
    return moved


def change_locked(session: Session, ids: Sequence[int], fields: Mapping[str, Sequence[Any]]) -> None:
    """Give jobs that are locked the values of these fields, one each."""
    many_rows.change(session, JOBS, {"id": ids}, _all_columns(fields))


def _all_columns(fields: Mapping[str, Sequence[Any]]) -> many_rows.Columns:
    columns: dict[str, Sequence[Any]] = {}
    for name, values in fields.items():
        columns |= _columns(name, values)
    return columns


def _columns(field: str, values: Sequence[Any]) -> many_rows.Columns:
    """Return the columns that keep a field of many records."""
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
}
"""Fields that rows keep in another way: column, and what stands in it."""
