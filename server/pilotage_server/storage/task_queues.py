"""Task queues in the database, their waiting jobs, and the significant attributes.

Rules
-----
The job with the higher priority goes first, then the older one; the index on waiting jobs has that order. PostgreSQL
returns the first jobs of many task queues in one statement and skips locked ones, so that concurrent matches take
different jobs without waiting for each other. SQLite has one writer at a time and takes one query for each task queue.

Conditions on one state also contain the condition of live jobs, so that the partial index on these is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import starmap
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, bindparam, delete, exists, func, insert, or_, select, text, update
from sqlmodel import Session

from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits, task_queue_key, traits_from_json, traits_to_json
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import LIVE_JOB, WAITING_JOB, metadata
from pilotage_server.storage.jobs import CHUNK, JOBS, chunks, job_record
from pilotage_server.storage.submission.templates import TEMPLATES

TASK_QUEUES = metadata.tables["task_queues"]

_IS_LIVE = text(LIVE_JOB)
IS_WAITING = text(WAITING_JOB)


def find_or_insert(session: Session, traits: Traits, now: datetime) -> TaskQueue:
    """Return the task queue with these traits, stored now if it is new, and lock it until the commit."""
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
        # A task queue that a concurrent transaction has stored may be removed again before it is locked.
        insert_if_absent(session, TASK_QUEUES, values)
    return TaskQueue(found, traits)


def delete_idle(session: Session, created_before: datetime, limit: int) -> tuple[int, ...]:
    """Remove at most `limit` older task queues without live jobs; return their ids.

    Task queues that are locked by the placement of a job are skipped. Live jobs are looked for again after the lock:
    that query sees everything that was committed before.
    """
    idle = ~exists().where(JOBS.c.task_queue_id == TASK_QUEUES.c.id, text(f"jobs.{LIVE_JOB}"))
    old = select(TASK_QUEUES.c.id).where(TASK_QUEUES.c.created < created_before, idle).order_by(TASK_QUEUES.c.id)
    locked = session.execute(old.limit(limit).with_for_update(skip_locked=True)).scalars().all()
    removed: list[int] = []
    for chunk in chunks(locked):
        gone = delete(TASK_QUEUES).where(one_of(TASK_QUEUES.c.id, chunk), idle).returning(TASK_QUEUES.c.id)
        removed += session.connection().execute(gone).scalars()
    return tuple(removed)


def load_task_queues(session: Session, ids: Iterable[int]) -> tuple[TaskQueue, ...]:
    """Return the existing ones of these task queues, by id."""
    found: list[TaskQueue] = []
    for chunk in chunks(sorted(set(ids))):
        query = select(TASK_QUEUES.c.id, TASK_QUEUES.c.needs_json).where(one_of(TASK_QUEUES.c.id, chunk))
        found += (_task_queue(row) for row in session.execute(query.order_by(TASK_QUEUES.c.id)).mappings())
    return tuple(found)


def load_live_task_queues(session: Session) -> tuple[TaskQueue, ...]:
    """Return the task queues with live jobs, by id; costs one look-up for each."""
    # A scalar subquery runs row by row: no planner turns it into a join over all jobs. Its order is that of the index.
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
    """Move the live jobs of a template from one task queue to another."""
    conditions = (JOBS.c.template_id == template_id, JOBS.c.task_queue_id == task_queue_id, _IS_LIVE)
    session.execute(update(JOBS).where(*conditions).values(task_queue_id=new_id))


def count_waiting(
    session: Session, ids: Collection[int] | None = None, but_for: Collection[int] = ()
) -> dict[int, int]:
    """Return the numbers of waiting jobs of these task queues (None = all), without `but_for`; zeros are left out."""
    query = select(JOBS.c.task_queue_id, func.count()).where(IS_WAITING).group_by(JOBS.c.task_queue_id)
    queues = (query.where(one_of(JOBS.c.task_queue_id, batch)) for batch in chunks(sorted(ids or ())))
    left_out = (query.where(one_of(JOBS.c.id, batch)) for batch in chunks(sorted(but_for)))
    found = Counter[int]()
    for each in [query] if ids is None else queues:
        found.update({row[0]: row[1] for row in session.execute(each)})
    for each in left_out:
        found.subtract({row[0]: row[1] for row in session.execute(each)})
    return {task_queue_id: count for task_queue_id, count in found.items() if count > 0}


def count_some(session: Session, ids: Iterable[int], most: int) -> dict[int, int]:
    """Return the numbers of waiting jobs of these task queues, counting at most `most`; zeros are left out."""
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
    """Return at most `limit` waiting jobs of a task queue in their order."""
    query = select(JOBS).where(JOBS.c.task_queue_id == task_queue_id, IS_WAITING)
    rows = session.execute(query.order_by(JOBS.c.priority.desc(), JOBS.c.id).limit(limit)).mappings()
    return [job_record(row) for row in rows]


def count_before(session: Session, task_queue_ids: Iterable[int], head: QueueHead) -> int:
    """Return the number of waiting jobs of these task queues that go before the job of `head`."""
    higher = JOBS.c.priority > head.priority
    earlier = (JOBS.c.priority == head.priority) & (JOBS.c.id < head.job_id)
    before = 0
    for chunk in chunks(sorted(set(task_queue_ids))):
        query = select(func.count()).where(one_of(JOBS.c.task_queue_id, chunk), IS_WAITING, higher | earlier)
        before += session.execute(query).scalar_one()
    return before


def _task_queue(row: RowMapping) -> TaskQueue:
    return TaskQueue(row["id"], traits_from_json(row["needs_json"]))


class ClaimableJob(NamedTuple):
    """A locked waiting job with the values that a match needs; the fields are columns of `jobs`."""

    id: int
    template_id: int
    cluster: int
    process: int
    attempt: int
    lease_s: float
    watch: int
    attempt_floor: int

    @property
    def lease(self) -> timedelta | None:
        """The length of the lease that the owner asked for, None = the server's default."""
        return timedelta(seconds=self.lease_s) if self.lease_s else None


_COLUMNS = ", ".join(ClaimableJob._fields)


def _first(columns: str, lock: str = "", more: str = "") -> str:
    """Return the statement for the first waiting jobs of a task queue; `more` is a further condition."""
    which = f"task_queue_id = ? AND {WAITING_JOB} {more}"
    return f"SELECT {columns} FROM jobs WHERE {which} ORDER BY priority DESC, id LIMIT ? {lock}"  # noqa: S608


def _of_many(first: str) -> str:
    """Return the statement for many task queues; its rows begin with the id of the task queue."""
    first = first.replace("= ?", "= wanted.id", 1).replace("LIMIT ?", "LIMIT wanted.most")
    wanted = "unnest(?::bigint[], ?::int[]) AS wanted (id, most)"
    return f"SELECT wanted.id, found.* FROM {wanted} CROSS JOIN LATERAL ({first}) AS found"  # noqa: S608


_TO_CLAIM = _first(_COLUMNS, "FOR UPDATE SKIP LOCKED")
_OTHERS_TO_CLAIM = _first(_COLUMNS, "FOR UPDATE SKIP LOCKED", "AND NOT id = ANY(?)")
_HEADS = _first("priority, id")
_THESE = f"SELECT task_queue_id, {_COLUMNS} FROM jobs WHERE id = ANY(?) AND {WAITING_JOB} FOR UPDATE SKIP LOCKED"  # noqa: S608
_AT_ONCE = {first: _of_many(first) for first in (_TO_CLAIM, _OTHERS_TO_CLAIM, _HEADS)}


def read_first_waiting(session: Session, wanted: Mapping[int, int]) -> dict[int, list[QueueHead]]:
    """Return the first waiting jobs of task queues; `wanted` has the maximum number for each. Nothing is locked."""
    found = _found(session, _HEADS, wanted)
    return {task_queue_id: list(starmap(QueueHead, rows)) for task_queue_id, rows in found.items()}


def lock_first_waiting(
    session: Session, wanted: Mapping[int, int], besides: Collection[int] = ()
) -> dict[int, list[ClaimableJob]]:
    """Lock and return the first waiting jobs of task queues that no other transaction has locked.

    `wanted` has the maximum number for each; `besides` are jobs that are left out.
    """
    found = _found(session, _OTHERS_TO_CLAIM, wanted, [*besides]) if besides else _found(session, _TO_CLAIM, wanted)
    return {task_queue_id: list(starmap(ClaimableJob, rows)) for task_queue_id, rows in found.items()}


def lock_waiting(session: Session, wanted: Mapping[int, int]) -> dict[int, ClaimableJob]:
    """Lock and return those of the jobs that still wait in their task queue and that no other transaction has locked.

    `wanted` has the task queue by job.
    """
    found = sql.rows(session, _THESE, list(wanted)) if wanted else ()
    return {job_id: ClaimableJob(job_id, *more) for where, job_id, *more in found if where == wanted[job_id]}


def read_heads(session: Session, ids: Iterable[int]) -> dict[int, QueueHead]:
    """Return the first waiting job of each of the task queues that has any."""
    found = read_first_waiting(session, dict.fromkeys(ids, 1))
    return {task_queue_id: heads[0] for task_queue_id, heads in found.items() if heads}


def _found(
    session: Session, first: str, wanted: Mapping[int, int], *values: list[int]
) -> dict[int, list[tuple[Any, ...]]]:
    """Run a statement of `_first` for task queues with their numbers of jobs; `values` are those of its condition."""
    if sql.is_sqlite(session):
        return {each: list(sql.rows(session, first, each, *values, most)) for each, most in wanted.items()}
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for task_queue_id, *row in sql.rows(session, _AT_ONCE[first], list(wanted), list(wanted.values()), *values):
        rows.setdefault(task_queue_id, []).append(tuple(row))
    return rows


_JOB_IS_LIVE = text(f"jobs.{LIVE_JOB}")
_WAITS = (JOBS.c.state == JobState.WAITING.value, _JOB_IS_LIVE)


def waiting_templates(session: Session, keys: Iterable[str]) -> list[tuple[int, int]]:
    """Return task queue and template of waiting jobs whose descriptions have one of these JSON keys at any depth.

    `keys` are in lower case and ASCII.
    """
    waiting = select(JOBS.c.task_queue_id, JOBS.c.template_id).where(*_WAITS).distinct().subquery()
    described = func.lower(TEMPLATES.c.description_json)
    holds: list[ColumnElement[bool]] = [described.contains(f'"{key}":', autoescape=True) for key in sorted(keys)]
    query = select(waiting.c.task_queue_id, waiting.c.template_id).join(
        TEMPLATES, TEMPLATES.c.id == waiting.c.template_id
    )
    rows = session.execute(query.where(or_(*holds)).order_by(waiting.c.template_id))
    return [(row[0], row[1]) for row in rows]


def waiting_with_past(session: Session) -> Iterator[list[JobRecord]]:
    """Yield the waiting jobs that were matched or held before, in chunks."""
    last = 0
    was_somewhere = or_(JOBS.c.attempt > 0, JOBS.c.hold_history_json != "")
    query = select(JOBS).where(*_WAITS, was_somewhere).order_by(JOBS.c.id).limit(CHUNK)
    while rows := session.execute(query.where(JOBS.c.id > last)).mappings().all():
        last = rows[-1]["id"]
        yield [job_record(row) for row in rows]


def move_templates(session: Session, template_ids: Iterable[int], before: int, after: int) -> None:
    """Move the waiting jobs of these templates from one task queue to another."""
    for chunk in chunks(template_ids):
        conditions = (one_of(JOBS.c.template_id, chunk), JOBS.c.task_queue_id == before)
        session.execute(update(JOBS).where(*conditions, *_WAITS).values(task_queue_id=after))


def move_jobs(session: Session, job_ids: Iterable[int], after: int) -> None:
    """Move these jobs, if they still wait, to another task queue."""
    for chunk in chunks(sorted(job_ids)):
        session.execute(update(JOBS).where(one_of(JOBS.c.id, chunk), *_WAITS).values(task_queue_id=after))


_ATTRIBUTES = metadata.tables["significant_attributes"]
_LOCK = 0x5049_4C54_4144_5331
"""Key of the advisory lock in PostgreSQL: any number that is not used otherwise in this database."""


def load_significant(session: Session) -> frozenset[str]:
    """Return the folded names of the significant attributes."""
    return frozenset(session.execute(select(_ATTRIBUTES.c.name)).scalars())


def share_lock_significant(session: Session) -> frozenset[str]:
    """Return the folded names, with a shared lock against additions until the transaction ends.

    SQLite has one writer at a time and needs no lock.
    """
    return _locked(session, shared=True)


def lock_significant(session: Session) -> frozenset[str]:
    """Lock the names exclusively until the transaction ends and return them."""
    return _locked(session, shared=False)


def insert_significant(session: Session, names: Iterable[str], now: datetime) -> None:
    """Add new names; call `lock_significant` first."""
    session.connection().execute(insert(_ATTRIBUTES), [{"name": name, "since": now} for name in sorted(names)])


def _locked(session: Session, *, shared: bool) -> frozenset[str]:
    if not sql.is_sqlite(session):
        lock = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        session.execute(select(lock(_LOCK)))
    # A separate statement: changes by the transaction that the lock waited for are visible only to the next one.
    return load_significant(session)
