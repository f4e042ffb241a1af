"""Workflows in the database: the jobs of a submission as one thing.

Their ids are consecutive, so a workflow is a range of ids, as a cluster is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import metadata

WORKFLOWS = metadata.tables["workflows"]


class StoredWorkflow(NamedTuple):
    """A workflow whose jobs have the ids `ids`; the first one is its id."""

    ids: range
    owner: str
    vo: str
    group: str
    name: str
    submitted: datetime


def insert_workflow(session: Session, new: StoredWorkflow) -> None:
    """Store a workflow."""
    columns = {"id": new.ids[0], "last": new.ids[-1], **new._asdict()}
    del columns["ids"]
    sql.insert_rows(session, WORKFLOWS, {name: [value] for name, value in columns.items()})


_SELECT = 'SELECT id, last, owner, vo, "group", name, submitted FROM workflows'
_BY_ID = f"{_SELECT} WHERE id = ?"
_NEWEST = f"{_SELECT} WHERE id <= ? ORDER BY id DESC LIMIT 1"


def load_workflow(session: Session, workflow: int) -> StoredWorkflow | None:
    """Return the workflow with this id."""
    return next(map(_workflow, sql.rows(session, _BY_ID, workflow)), None)


def newest_workflow(session: Session, job_id: int) -> StoredWorkflow | None:
    """Return the newest workflow that begins at this job or before; it need not have this job."""
    return next(map(_workflow, sql.rows(session, _NEWEST, job_id)), None)


def _workflow(row: Sequence[Any]) -> StoredWorkflow:
    first, last, owner, vo, group, name, submitted = row
    return StoredWorkflow(range(first, last + 1), owner, vo, group, name, sql.utc_time(submitted))


_DELETE_EMPTY = """
    DELETE FROM workflows WHERE id <= ? AND last >= ?
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id BETWEEN workflows.id AND workflows.last)
    AND NOT EXISTS (SELECT 1 FROM submission_parts WHERE submission_parts.submission = workflows.id)
"""


def delete_empty_workflows(session: Session, job_ids: Collection[int]) -> None:
    """Remove the workflows that have no job left, given the jobs that were just removed."""
    if job_ids:
        sql.execute(session, _DELETE_EMPTY, max(job_ids), min(job_ids))
