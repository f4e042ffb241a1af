"""Task queues in the database, and what waits in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import RowMapping, bindparam, delete, exists, func, select, text, update
from sqlmodel import Session

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.task_queues import (
    TaskQueue,
    Traits,
    task_queue_key,
    traits_from_json,
    traits_to_json,
)
from pilotage_server.core.waiting import Head
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.jobs import chunks, job_record
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import LIVE_JOB, WAITING_JOB

TASK_QUEUES = metadata.tables["task_queues"]
JOBS = metadata.tables["jobs"]

_IS_LIVE = text(LIVE_JOB)
IS_WAITING = text(WAITING_JOB)


def find_or_insert(session: Session, traits: Traits, now: datetime) -> TaskQueue:
    """Return the task queue with these traits, stored now if there was none, and keep it until the commit."""
    account = traits.account
    values = {
        "key": task_queue_key(traits),
        "vo": account.vo,
        "group": account.group,
        "owner": account.owner,
        "pool_id": traits.pool_id,
        "needs_json": traits_to_json(traits),
        "created": now,
    }
    by_key = select(TASK_QUEUES.c.id).where(TASK_QUEUES.c.key == values["key"])
    held = by_key.with_for_update(read=True, key_share=True)
    while (found := session.execute(held).scalar_one_or_none()) is None:
        # One that somebody else has just stored may be gone again before it can be held.
        insert_if_absent(session, TASK_QUEUES, values)
    return TaskQueue(found, traits)


def delete_idle(session: Session, created_before: datetime, limit: int) -> tuple[int, ...]:
    """Remove at most `limit` older task queues that have no live job; return their ids.

    One to which a job is just coming is held by that transaction, and passed over. Whether it is idle is asked
    again once it is locked: what is asked then sees what has been committed before.
    """
    idle = ~exists().where(JOBS.c.task_queue_id == TASK_QUEUES.c.id, text(f"jobs.{LIVE_JOB}"))
    old = select(TASK_QUEUES.c.id).where(TASK_QUEUES.c.created < created_before, idle).order_by(TASK_QUEUES.c.id)
    locked = session.execute(old.limit(limit).with_for_update(skip_locked=True)).scalars().all()
    removed: list[int] = []
    for chunk in chunks(locked):
        gone = delete(TASK_QUEUES).where(TASK_QUEUES.c.id.in_(chunk), idle).returning(TASK_QUEUES.c.id)
        removed += session.connection().execute(gone).scalars()
    return tuple(removed)


def load_task_queues(session: Session, ids: Iterable[int]) -> tuple[TaskQueue, ...]:
    """Return the task queues of these ids, by id; those that there are not are left out."""
    found: list[TaskQueue] = []
    for chunk in chunks(sorted(set(ids))):
        query = select(TASK_QUEUES.c.id, TASK_QUEUES.c.needs_json).where(TASK_QUEUES.c.id.in_(chunk))
        found += (_task_queue(row) for row in session.execute(query.order_by(TASK_QUEUES.c.id)).mappings())
    return tuple(found)


def load_live_task_queues(session: Session) -> tuple[TaskQueue, ...]:
    """Return the task queues that have a job in a state that is not final, by id; costs one look-up for each."""
    # A scalar subquery is run row by row: no planner makes a join over all jobs of it. Its order is the index's.
    job = select(JOBS.c.id).where(JOBS.c.task_queue_id == TASK_QUEUES.c.id, _IS_LIVE)
    first = job.order_by(JOBS.c.template_id).limit(1).scalar_subquery()
    query = select(TASK_QUEUES.c.id, TASK_QUEUES.c.needs_json).where(first.is_not(None)).order_by(TASK_QUEUES.c.id)
    return tuple(_task_queue(row) for row in session.execute(query).mappings())


def templates_of(session: Session, task_queue_id: int) -> tuple[int, ...]:
    """Return the templates of the live jobs of a task queue; costs one look-up for each."""
    return tuple(session.execute(_TEMPLATES, {"task_queue": task_queue_id}).scalars())


_TEMPLATES = text(f"""
    WITH RECURSIVE found(id) AS (
        SELECT min(template_id) FROM jobs WHERE task_queue_id = :task_queue AND {LIVE_JOB}
        UNION ALL
        SELECT (
            SELECT min(template_id) FROM jobs
            WHERE task_queue_id = :task_queue AND {LIVE_JOB} AND template_id > found.id
        ) FROM found WHERE found.id IS NOT NULL
    )
    SELECT id FROM found WHERE id IS NOT NULL
""")  # noqa: S608 - of our own texts only


def move_live_jobs(session: Session, task_queue_id: int, template_id: int, new_id: int) -> None:
    """Let the live jobs of a template that are in one task queue be in another."""
    mine = (JOBS.c.template_id == template_id, JOBS.c.task_queue_id == task_queue_id, _IS_LIVE)
    session.execute(update(JOBS).where(*mine).values(task_queue_id=new_id))


def count_waiting(
    session: Session, ids: Collection[int] | None = None, but_for: Collection[int] = ()
) -> dict[int, int]:
    """Return how many jobs wait in each task queue (None = all) in which any does, these jobs not counted."""
    query = select(JOBS.c.task_queue_id, func.count()).where(IS_WAITING).group_by(JOBS.c.task_queue_id)
    queues = (query.where(JOBS.c.task_queue_id.in_(batch)) for batch in chunks(sorted(ids or ())))
    left_out = (query.where(JOBS.c.id.in_(batch)) for batch in chunks(sorted(but_for)))
    found = Counter[int]()
    for each in [query] if ids is None else queues:
        found.update({row[0]: row[1] for row in session.execute(each)})
    for each in left_out:
        found.subtract({row[0]: row[1] for row in session.execute(each)})
    return {task_queue_id: count for task_queue_id, count in found.items() if count > 0}


def count_some(session: Session, ids: Iterable[int], most: int) -> dict[int, int]:
    """Return how many jobs wait in each of these task queues in which any does; no more than `most` are counted."""
    found: dict[int, int] = {}
    for batch in chunks(sorted(set(ids))):
        rows = session.execute(_COUNT_SOME, {"ids": batch, "most": most})
        found |= {row[0]: row[1] for row in rows if row[1]}
    return found


_COUNT_SOME = text(f"""
    SELECT id, (
        SELECT count(*) FROM (
            SELECT 1 FROM jobs WHERE jobs.task_queue_id = task_queues.id AND {WAITING_JOB}
            ORDER BY priority DESC, id LIMIT :most
        ) AS counted
    ) FROM task_queues WHERE id IN :ids
""").bindparams(bindparam("ids", expanding=True))  # noqa: S608 - of our own texts only


def load_first_waiting(session: Session, task_queue_id: int, limit: int) -> list[JobRecord]:
    """Return at most `limit` jobs of a task queue that a match may take, the first to go first."""
    query = select(JOBS).where(JOBS.c.task_queue_id == task_queue_id, IS_WAITING)
    rows = session.execute(query.order_by(JOBS.c.priority.desc(), JOBS.c.id).limit(limit)).mappings()
    return [job_record(row) for row in rows]


def count_before(session: Session, task_queue_ids: Iterable[int], head: Head) -> int:
    """Return how many waiting jobs of these task queues go before the job that `head` describes."""
    higher = JOBS.c.priority > head.priority
    earlier = (JOBS.c.priority == head.priority) & (JOBS.c.id < head.job_id)
    before = 0
    for chunk in chunks(sorted(set(task_queue_ids))):
        query = select(func.count()).where(JOBS.c.task_queue_id.in_(chunk), IS_WAITING, higher | earlier)
        before += session.execute(query).scalar_one()
    return before


def _task_queue(row: RowMapping) -> TaskQueue:
    return TaskQueue(row["id"], traits_from_json(row["needs_json"]))
