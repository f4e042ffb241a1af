"""The live jobs of pools by task queue and template, and their way into other pools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, func, select, text, update
from sqlmodel import Session

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.tree_changes import Holding
from pilotage_server.storage import bulk
from pilotage_server.storage.jobs import JOBS, chunks, load_jobs
from pilotage_server.storage.tables.conditions import LIVE_JOB
from pilotage_server.storage.task_queues import TASK_QUEUES
from pilotage_server.storage.templates import load_descriptions

_IS_LIVE = text(f"jobs.{LIVE_JOB}")
_IS_WAITING = JOBS.c.state == JobState.WAITING.value


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the jobs of a holding come."""

    pool_id: str
    task_queue_id: int


def load_holdings(session: Session, pool_ids: Collection[str]) -> tuple[Holding, ...]:
    """Return the live jobs of these pools, in the order of pools, task queues and templates."""
    group = JOBS.c.pool_id, JOBS.c.task_queue_id, JOBS.c.template_id, JOBS.c.vo
    waiting = func.sum(case((_IS_WAITING, 1), else_=0))
    rows: list[tuple[str, int, int, str, int]] = []
    for batch in chunks(sorted(pool_ids)):
        of_pools = select(TASK_QUEUES.c.id).where(TASK_QUEUES.c.pool_id.in_(batch))
        query = select(*group, waiting).where(JOBS.c.task_queue_id.in_(of_pools), _IS_LIVE)
        rows += (tuple(row) for row in session.execute(query.group_by(*group).order_by(*group)))
    descriptions = load_descriptions(session, (row[2] for row in rows))
    return tuple(
        Holding(pool_id, task_queue_id, template_id, vo, descriptions[template_id].requirements or {}, count)
        for pool_id, task_queue_id, template_id, vo, count in rows
    )


def move_holding(session: Session, holding: Holding, destination: Destination) -> None:
    """Let the live jobs of a holding belong to another pool and task queue."""
    session.execute(
        update(JOBS)
        .where(_in_holding(holding), _IS_LIVE)
        .values(pool_id=destination.pool_id, task_queue_id=destination.task_queue_id)
    )


def pools_now(session: Session, job_ids: Collection[int]) -> dict[int, str]:
    """Return the pools of jobs that may have come to others since they were loaded, by the ids of the jobs.

    In SQLite, which has one writer at a time, they are where they were: nothing is returned.
    """
    if bulk.is_sqlite(session):
        return {}
    found: dict[int, str] = {}
    for chunk in chunks(sorted(job_ids)):
        found |= {
            row[0]: row[1] for row in session.execute(select(JOBS.c.id, JOBS.c.pool_id).where(JOBS.c.id.in_(chunk)))
        }
    return found


def load_waiting_jobs(session: Session, holding: Holding) -> tuple[JobRecord, ...]:
    """Return the jobs of a holding that wait, by id."""
    ids = session.execute(select(JOBS.c.id).where(_in_holding(holding), _IS_WAITING)).scalars()
    return tuple(load_jobs(session, ids).values())


def _in_holding(holding: Holding) -> ColumnElement[bool]:
    return and_(
        JOBS.c.template_id == holding.template_id,
        JOBS.c.task_queue_id == holding.task_queue_id,
        JOBS.c.pool_id == holding.pool_id,
    )
