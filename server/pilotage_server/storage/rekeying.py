"""Waiting jobs that belong in another task queue than before: found and moved in few statements.

What asks for one state asks for live jobs too, so that the index on these serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import ColumnElement, func, or_, select, text, update
from sqlmodel import Session

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.storage.jobs import CHUNK, JOBS, chunks, job_record
from pilotage_server.storage.tables.conditions import LIVE_JOB
from pilotage_server.storage.templates import TEMPLATES

_IS_LIVE = text(f"jobs.{LIVE_JOB}")
_WAITS = (JOBS.c.state == JobState.WAITING.value, _IS_LIVE)


def waiting_templates(session: Session, keys: Iterable[str]) -> list[tuple[int, int]]:
    """Return task queue and template of waiting jobs whose descriptions hold one of these keys of JSON, at any depth.

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
    """Yield, a part at a time, the waiting jobs that were matched or held before."""
    last = 0
    was_somewhere = or_(JOBS.c.attempt > 0, JOBS.c.hold_history_json != "")
    query = select(JOBS).where(*_WAITS, was_somewhere).order_by(JOBS.c.id).limit(CHUNK)
    while rows := session.execute(query.where(JOBS.c.id > last)).mappings().all():
        last = rows[-1]["id"]
        yield [job_record(row) for row in rows]


def move_templates(session: Session, template_ids: Iterable[int], before: int, after: int) -> None:
    """Let the waiting jobs of these templates that are in one task queue be in another."""
    for chunk in chunks(template_ids):
        mine = (JOBS.c.template_id.in_(chunk), JOBS.c.task_queue_id == before)
        session.execute(update(JOBS).where(*mine, *_WAITS).values(task_queue_id=after))


def move_jobs(session: Session, job_ids: Iterable[int], after: int) -> None:
    """Let these jobs, where they still wait, be in another task queue."""
    for chunk in chunks(sorted(job_ids)):
        session.execute(update(JOBS).where(JOBS.c.id.in_(chunk), *_WAITS).values(task_queue_id=after))
