"""Workflows in the database: the jobs of a submission as one thing, and the graph of its steps.

Their ids are consecutive, so a workflow is a range of ids, as a cluster is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.values.dependencies import DependencyKind
from pilotage_server.core.jobs.workflow_graphs import StepEdge, WorkflowGraph
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


def insert_workflow(session: Session, new: StoredWorkflow, graph: WorkflowGraph | None) -> None:
    """Store a workflow; `graph` None = it is not kept."""
    text = None if graph is None else _graph_as_json(graph)
    columns = {"id": new.ids[0], "last": new.ids[-1], **new._asdict(), "edges_json": text}
    del columns["ids"]
    sql.insert_rows(session, WORKFLOWS, {name: [value] for name, value in columns.items()})


def _graph_as_json(graph: WorkflowGraph) -> str:
    """Return the numbers of jobs of the steps, first and last ids outside, and edges by their kind."""
    edges: dict[str, list[tuple[int, int]]] = {}
    for kind, parent, child in graph.edges:
        edges.setdefault(kind, []).append((parent, child))
    outside = [(ids[0], ids[-1]) for ids in graph.outside]
    values = {"steps": list(map(len, graph.steps)), "outside": outside, "edges": edges}
    return json.dumps(values, separators=(",", ":"))


def _graph_from_json(text: str) -> WorkflowGraph:
    values = json.loads(text)
    ends = list(accumulate(values["steps"], initial=0))
    edges = [
        StepEdge(DependencyKind(kind), parent, child)
        for kind, pairs in values["edges"].items()
        for parent, child in pairs
    ]
    outside = tuple(range(first, last + 1) for first, last in values["outside"])
    return WorkflowGraph(tuple(map(range, ends, ends[1:])), tuple(edges), outside)


_GRAPH = "SELECT edges_json FROM workflows WHERE id = ?"


def load_graph(session: Session, workflow: int) -> WorkflowGraph | None:
    """Return the graph of the workflow with this id; None = it is not kept."""
    found = next(iter(sql.rows(session, _GRAPH, workflow)), None)
    return None if found is None or found[0] is None else _graph_from_json(found[0])


_SELECT = 'SELECT id, last, owner, vo, "group", name, submitted FROM workflows'
_BY_ID = f"{_SELECT} WHERE id = ?"
_NEWEST = f"{_SELECT} WHERE id <= ? ORDER BY id DESC LIMIT 1"


def load_workflow(session: Session, workflow: int) -> StoredWorkflow | None:
    """Return the workflow with this id."""
    return next(map(_workflow, sql.rows(session, _BY_ID, workflow)), None)


def newest_workflow(session: Session, job_id: int) -> StoredWorkflow | None:
    """Return the newest workflow that begins at this job or before; it need not have this job."""
    return next(map(_workflow, sql.rows(session, _NEWEST, job_id)), None)


_LARGEST_ID = 2**63 - 1
_PAGE = f"{_SELECT} WHERE id < ? ORDER BY id DESC LIMIT ?"
_PAGE_OF_OWNER = f"{_SELECT} WHERE owner = ? AND id < ? ORDER BY id DESC LIMIT ?"
_PAGE_OF_ACCOUNT = f"{_SELECT} WHERE owner = ? AND vo = ? AND id < ? ORDER BY id DESC LIMIT ?"


def newest_workflows(
    session: Session, owner: str | None, vo: str | None, before: int, most: int
) -> list[StoredWorkflow]:
    """Return the newest workflows before an id, 0 = from the newest on.

    `owner` None = of all owners; `vo` None = of this owner in all VOs.
    """
    before = before or _LARGEST_ID
    if owner is None:
        found = sql.rows(session, _PAGE, before, most)
    elif vo is None:
        found = sql.rows(session, _PAGE_OF_OWNER, owner, before, most)
    else:
        found = sql.rows(session, _PAGE_OF_ACCOUNT, owner, vo, before, most)
    return list(map(_workflow, found))


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
