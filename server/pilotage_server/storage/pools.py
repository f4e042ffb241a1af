"""Pools in the database, the locks that order their removal with new jobs, and their groups of live jobs.

Rules
-----
A transaction that places a job locks the pool's row against removal until its commit; a cleanup skips locked rows.
Queries use the exact condition of the partial index on live jobs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, delete, exists, func, or_, select, text, update
from sqlmodel import Session

from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.queueing.tree_plan import JobGroup
from pilotage_server.core.resources.pools import Pool
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import LIVE_JOB, metadata
from pilotage_server.storage.jobs import JOBS, chunks, load_jobs
from pilotage_server.storage.resources import active_tree_version, newest_made
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.task_queues import TASK_QUEUES

_POOLS = metadata.tables["pools"]
_TASK_QUEUES = metadata.tables["task_queues"]
_JOBS = metadata.tables["jobs"]
_COLUMNS = (
    _POOLS.c.id,
    _POOLS.c.vo,
    _POOLS.c.canonical,
    _POOLS.c.requirements_json,
    _POOLS.c.created,
    _POOLS.c.mapped,
    _POOLS.c.tree_version,
    _POOLS.c.idle_since,
)
"""A pool's columns, in the order of its fields."""


def load_pools(session: Session, pace: Pace = at_once) -> tuple[Pool, ...]:
    """Return all pools, by id."""
    newest = newest_made(session)
    return tuple(_pool(row, newest) for row in pace(session.execute(_ordered())))


def hold_pool(session: Session, pool_id: str) -> Pool | None:
    """Return a pool and lock it against removal until the transaction ends; None = there is none."""
    query = select(*_COLUMNS).where(_POOLS.c.id == pool_id).with_for_update(read=True, key_share=True)
    row = session.execute(query).one_or_none()
    return _pool(row, newest_made(session)) if row is not None else None


def lock_for_removal(session: Session, ids: Collection[str]) -> tuple[Pool, ...]:
    """Lock and return those of the pools that are not locked, by id."""
    return _locked(session, ids, _ordered().with_for_update(skip_locked=True))


def _ordered() -> Select[Any]:
    return select(*_COLUMNS).order_by(_POOLS.c.id)


def _locked(session: Session, ids: Collection[str], query: Select[Any]) -> tuple[Pool, ...]:
    found: list[Pool] = []
    newest = newest_made(session)
    for batch in chunks(sorted(ids)):
        found += (_pool(row, newest) for row in session.execute(query.where(one_of(_POOLS.c.id, batch))))
    return tuple(found)


def insert_pool(session: Session, pool: Pool) -> bool:
    """Store a pool; False = it exists already."""
    values = {
        "id": pool.id,
        "vo": pool.vo,
        "canonical": pool.canonical,
        "requirements_json": section_to_json(pool.section),
        "created": pool.created,
        "mapped": pool.mapped,
        "tree_version": pool.tree_version,
    }
    return insert_if_absent(session, _POOLS, values)


def pool_ids(session: Session) -> frozenset[str]:
    """Return the ids of all pools."""
    # As one text: a row for each takes ten times as long, and may yield the interpreter at each row.
    ids: str | None = session.execute(select(func.aggregate_strings(_POOLS.c.id, " "))).scalar_one()
    return frozenset(ids.split()) if ids else frozenset()


def pools_version(session: Session) -> tuple[object, ...]:
    """Return a value that changes whenever a pool is added, removed or mapped."""
    newest = select(
        func.count(), func.max(_POOLS.c.created), func.max(_POOLS.c.mapped), func.max(_POOLS.c.tree_version)
    )
    return (*session.execute(newest).one(), active_tree_version(session))


def find_pools(session: Session, ids: Collection[str]) -> tuple[Pool, ...]:
    """Return the existing ones of these pools, by id."""
    return _locked(session, ids, _ordered())


def set_mapped(session: Session, ids: Collection[str], mapped: datetime, tree_version: int) -> tuple[str, ...]:
    """Record that the active tree has mapped the pools at `mapped`; return those without a later mapping."""
    found: list[str] = []
    earlier = or_(_POOLS.c.mapped.is_(None), _POOLS.c.mapped < mapped)
    for batch in chunks(sorted(ids)):
        these = (
            update(_POOLS).where(one_of(_POOLS.c.id, batch), earlier).values(mapped=mapped, tree_version=tree_version)
        )
        found += session.execute(these.returning(_POOLS.c.id)).scalars()
    return tuple(sorted(found))


def unmap(session: Session, ids: Collection[str]) -> None:
    """Record that pools have no mapping."""
    for batch in chunks(sorted(ids)):
        session.execute(update(_POOLS).where(one_of(_POOLS.c.id, batch)).values(mapped=None))


def set_sections(session: Session, pools: Iterable[Pool]) -> None:
    """Replace the sections of pools by others with the same canonical texts."""
    values = [{"the_pool": pool.id, "section": section_to_json(pool.section)} for pool in pools]
    if values:
        known_by = update(_POOLS).where(_POOLS.c.id == bindparam("the_pool"))
        session.connection().execute(known_by.values(requirements_json=bindparam("section")), values)


def set_idle_since(session: Session, ids: Collection[str], since: datetime | None) -> None:
    """Record since when pools are idle; None = they are not."""
    for batch in chunks(ids):
        session.execute(update(_POOLS).where(one_of(_POOLS.c.id, batch)).values(idle_since=since))


def note_job(session: Session, pool_id: str) -> None:
    """Record that a pool is not idle, unless a concurrent transaction has locked it and records its own finding."""
    # Waiting instead could deadlock two submissions that use two pools in opposite order.
    free = select(_POOLS.c.id).where(_POOLS.c.id == pool_id).with_for_update(key_share=True, skip_locked=True)
    session.execute(update(_POOLS).where(_POOLS.c.id.in_(free)).values(idle_since=None))


def delete_pools(session: Session, ids: Collection[str]) -> None:
    """Remove pools."""
    for batch in chunks(ids):
        session.execute(delete(_POOLS).where(one_of(_POOLS.c.id, batch)))


def delete_task_queues(session: Session, pool_ids: Collection[str]) -> tuple[int, ...]:
    """Remove the task queues of pools without live jobs, and return their ids."""
    # The placement of a job locks the pool before it looks for the task queue, so it cannot find one of these.
    removed: list[int] = []
    for batch in chunks(pool_ids):
        query = delete(_TASK_QUEUES).where(one_of(_TASK_QUEUES.c.pool_id, batch)).returning(_TASK_QUEUES.c.id)
        removed += session.execute(query).scalars()
    return tuple(removed)


def pools_with_live_jobs(session: Session, ids: Collection[str]) -> frozenset[str]:
    """Return those of the pools that have a live job; costs one look-up for each of their task queues."""
    # A job is always in a task queue of its pool.
    live_job = exists().where(
        _TASK_QUEUES.c.pool_id == _POOLS.c.id, _JOBS.c.task_queue_id == _TASK_QUEUES.c.id, text(f"jobs.{LIVE_JOB}")
    )
    found: set[str] = set()
    for batch in chunks(sorted(ids)):
        found.update(session.execute(select(_POOLS.c.id).where(one_of(_POOLS.c.id, batch), live_job)).scalars())
    return frozenset(found)


def _pool(row: Sequence[Any], newest: tuple[int, datetime]) -> Pool:
    """Return the pool of a row of `_COLUMNS`; a pool with a mapping has also been mapped by the `newest` tree."""
    pool_id, vo, canonical, section, created, mapped, tree_version, idle_since = row
    if tree_version < newest[0]:
        tree_version, mapped = newest[0], mapped and newest[1]
    return Pool(pool_id, vo, canonical, section_from_json(section), created, mapped, tree_version, idle_since)


def section_to_json(section: Mapping[str, Value]) -> str:
    """Return a section as canonical JSON."""
    return json.dumps(dict(section), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def section_from_json(text_: str) -> dict[str, Value]:
    """Return the section that `section_to_json` wrote."""
    read: dict[str, Any] = json.loads(text_)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}


_IS_LIVE = text(f"jobs.{LIVE_JOB}")
_IS_WAITING = JOBS.c.state == JobState.WAITING.value


@dataclass(frozen=True, slots=True)
class Destination:
    """The pool and task queue that the jobs of a group move to."""

    pool_id: str
    task_queue_id: int


def load_job_groups(session: Session, pool_ids: Collection[str]) -> tuple[JobGroup, ...]:
    """Return the groups of live jobs of these pools, in the order of pools, task queues and templates."""
    group = JOBS.c.pool_id, JOBS.c.task_queue_id, JOBS.c.template_id, JOBS.c.vo
    waiting = func.sum(case((_IS_WAITING, 1), else_=0))
    rows: list[tuple[str, int, int, str, int]] = []
    for batch in chunks(sorted(pool_ids)):
        of_pools = select(TASK_QUEUES.c.id).where(one_of(TASK_QUEUES.c.pool_id, batch))
        query = select(*group, waiting).where(JOBS.c.task_queue_id.in_(of_pools), _IS_LIVE)
        rows += (tuple(row) for row in session.execute(query.group_by(*group).order_by(*group)))
    descriptions = load_descriptions(session, (row[2] for row in rows))
    return tuple(
        JobGroup(pool_id, task_queue_id, template_id, vo, descriptions[template_id].requirements or {}, count)
        for pool_id, task_queue_id, template_id, vo, count in rows
    )


def move_job_group(session: Session, holding: JobGroup, destination: Destination) -> None:
    """Move the live jobs of a group to another pool and task queue."""
    session.execute(
        update(JOBS)
        .where(_in_group(holding), _IS_LIVE)
        .values(pool_id=destination.pool_id, task_queue_id=destination.task_queue_id)
    )


def pools_now(session: Session, job_ids: Collection[int]) -> dict[int, str]:
    """Return the present pools of jobs, by job id: a tree may have moved them since they were loaded.

    In SQLite, which has one writer at a time, they cannot have moved: the result is empty.
    """
    if sql.is_sqlite(session):
        return {}
    found: dict[int, str] = {}
    for chunk in chunks(sorted(job_ids)):
        found |= {
            row[0]: row[1] for row in session.execute(select(JOBS.c.id, JOBS.c.pool_id).where(one_of(JOBS.c.id, chunk)))
        }
    return found


def load_waiting_jobs(session: Session, holding: JobGroup) -> tuple[JobRecord, ...]:
    """Return the waiting jobs of a group, by id."""
    ids = session.execute(select(JOBS.c.id).where(_in_group(holding), _IS_WAITING)).scalars()
    return tuple(load_jobs(session, ids).values())


def _in_group(holding: JobGroup) -> ColumnElement[bool]:
    return and_(
        JOBS.c.template_id == holding.template_id,
        JOBS.c.task_queue_id == holding.task_queue_id,
        JOBS.c.pool_id == holding.pool_id,
    )
