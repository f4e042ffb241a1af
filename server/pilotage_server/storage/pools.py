"""The pools in the database, and the locks that order their removal with the jobs that come.

A transaction that places a job holds the pool's row against removal until its commit; a cleanup skips rows that
are held. Queries name the states of live jobs with the very text of the index on them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, delete, exists, func, or_, select, text, update
from sqlmodel import Session

from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage_server.core.pools import Pool
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import LIVE_JOB
from pilotage_server.storage.trees import newest_made, version_in_force

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
    """Return a pool and keep it from being removed until the transaction ends; None = there is none."""
    query = select(*_COLUMNS).where(_POOLS.c.id == pool_id).with_for_update(read=True, key_share=True)
    row = session.execute(query).one_or_none()
    return _pool(row, newest_made(session)) if row is not None else None


def lock_for_removal(session: Session, ids: Collection[str]) -> tuple[Pool, ...]:
    """Return those of the pools that nobody holds, by id, and keep others from holding them."""
    return _locked(session, ids, _ordered().with_for_update(skip_locked=True))


def _ordered() -> Select[Any]:
    return select(*_COLUMNS).order_by(_POOLS.c.id)


def _locked(session: Session, ids: Collection[str], query: Select[Any]) -> tuple[Pool, ...]:
    found: list[Pool] = []
    newest = newest_made(session)
    for batch in chunks(sorted(ids)):
        found += (_pool(row, newest) for row in session.execute(query.where(_POOLS.c.id.in_(batch))))
    return tuple(found)


def insert_pool(session: Session, pool: Pool) -> bool:
    """Store a pool; return False when somebody else has just stored it."""
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
    # As one text: a row each would take ten times as long, and the interpreter might be lost at each.
    ids: str | None = session.execute(select(func.aggregate_strings(_POOLS.c.id, " "))).scalar_one()
    return frozenset(ids.split()) if ids else frozenset()


def pools_stamp(session: Session) -> tuple[object, ...]:
    """Return what is another whenever pools have come, gone, or been mapped."""
    newest = select(
        func.count(), func.max(_POOLS.c.created), func.max(_POOLS.c.mapped), func.max(_POOLS.c.tree_version)
    )
    return (*session.execute(newest).one(), version_in_force(session))


def find_pools(session: Session, ids: Collection[str]) -> tuple[Pool, ...]:
    """Return those of the pools that there are, by id."""
    return _locked(session, ids, _ordered())


def stamp(session: Session, ids: Collection[str], mapped: datetime, tree_version: int) -> tuple[str, ...]:
    """Note that pools have been mapped then by that tree, which is in force; return those nobody has mapped later."""
    found: list[str] = []
    earlier = or_(_POOLS.c.mapped.is_(None), _POOLS.c.mapped < mapped)
    for batch in chunks(sorted(ids)):
        these = update(_POOLS).where(_POOLS.c.id.in_(batch), earlier).values(mapped=mapped, tree_version=tree_version)
        found += session.execute(these.returning(_POOLS.c.id)).scalars()
    return tuple(sorted(found))


def unmap(session: Session, ids: Collection[str]) -> None:
    """Note that pools have no mapping."""
    for batch in chunks(sorted(ids)):
        session.execute(update(_POOLS).where(_POOLS.c.id.in_(batch)).values(mapped=None))


def set_sections(session: Session, pools: Iterable[Pool]) -> None:
    """Let pools be known by other sections, which mean what their canonical texts say."""
    values = [{"the_pool": pool.id, "section": section_to_json(pool.section)} for pool in pools]
    if values:
        known_by = update(_POOLS).where(_POOLS.c.id == bindparam("the_pool"))
        session.connection().execute(known_by.values(requirements_json=bindparam("section")), values)


def set_idle_since(session: Session, ids: Collection[str], since: datetime | None) -> None:
    """Note since when pools are seen idle, or that they are not (None)."""
    for batch in chunks(ids):
        session.execute(update(_POOLS).where(_POOLS.c.id.in_(batch)).values(idle_since=since))


def note_job(session: Session, pool_id: str) -> None:
    """Take back the note that a pool is idle; where somebody else is just writing it, that one's word counts."""
    # Waiting for him instead could lock two submissions that name two pools in opposite order.
    free = select(_POOLS.c.id).where(_POOLS.c.id == pool_id).with_for_update(key_share=True, skip_locked=True)
    session.execute(update(_POOLS).where(_POOLS.c.id.in_(free)).values(idle_since=None))


def delete_pools(session: Session, ids: Collection[str]) -> None:
    """Remove pools."""
    for batch in chunks(ids):
        session.execute(delete(_POOLS).where(_POOLS.c.id.in_(batch)))


def delete_task_queues(session: Session, pool_ids: Collection[str]) -> tuple[int, ...]:
    """Remove the task queues of pools that no live job belongs to, and return their ids."""
    # Whoever places a job holds the pool before he looks for its task queue, so none is found meanwhile.
    removed: list[int] = []
    for batch in chunks(pool_ids):
        query = delete(_TASK_QUEUES).where(_TASK_QUEUES.c.pool_id.in_(batch)).returning(_TASK_QUEUES.c.id)
        removed += session.execute(query).scalars()
    return tuple(removed)


def pools_with_live_jobs(session: Session, ids: Collection[str]) -> frozenset[str]:
    """Return those of the pools with a job in a non-final state; costs one look-up for each of their task queues."""
    # A job is in a task queue of its pool, always.
    live_job = exists().where(
        _TASK_QUEUES.c.pool_id == _POOLS.c.id, _JOBS.c.task_queue_id == _TASK_QUEUES.c.id, text(f"jobs.{LIVE_JOB}")
    )
    found: set[str] = set()
    for batch in chunks(sorted(ids)):
        found.update(session.execute(select(_POOLS.c.id).where(_POOLS.c.id.in_(batch), live_job)).scalars())
    return frozenset(found)


def _pool(row: Sequence[Any], newest: tuple[int, datetime]) -> Pool:
    """Return the pool of a row of `_COLUMNS`; the `newest` tree has looked at it, and mapped it if it had a mapping."""
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
