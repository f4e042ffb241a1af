"""Clusters and workflows as one thing: their jobs, and pages of them with the numbers of jobs by state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.values.jobs import JobCondition
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import may_change
from pilotage_server.core.jobs.clusters import ClusterSummary, SelectedJobs
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.operations.jobs.conditions import query_of
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.queries.selection import JobFinder
from pilotage_server.storage.submission.clusters import (
    ClusterJob,
    count_by_state,
    find_runs,
    load_first_job,
    newest_clusters,
)
from pilotage_server.storage.submission.workflows import StoredWorkflow, load_workflow

ALL = frozenset(JobState)
"""All states."""

MOST_JOBS = 1_000_000
"""An answer ends once its clusters have this number of jobs: reading so many takes most of a second."""


@dataclass(frozen=True, slots=True)
class ClusterPage:
    """Clusters and workflows, the newest first; `next_page_token` "" = there are no more."""

    clusters: tuple[ClusterSummary, ...]
    next_page_token: str


def find_jobs(
    transaction: Transaction,
    identity: Identity,
    selections: Sequence[JobSelection],
    states: Collection[JobState] = (),
) -> tuple[SelectedJobs, ...]:
    """Return the jobs of each selection.

    Of workflows, and of whole clusters with several jobs, only those in `states`; empty = all.
    Only the first selections are answered if they have many jobs.

    Raises
    ------
    NotFoundError
        For the first selection of which the caller cannot see a job, or whose processes the cluster never had.
    """
    found: list[SelectedJobs] = []
    jobs = 0
    for selection in selections:
        ids, whole = _extent(transaction, identity, selection)
        counts = count_by_state(transaction.session, ids)
        if not counts:
            raise NotFoundError("job", str(selection))
        is_chosen = whole is not None and (len(ids) > 1 or selection.workflow)
        runs = find_runs(transaction.session, ids, counts, states if is_chosen and states else ALL)
        found.append(SelectedJobs(runs, whole and summary_of(whole, counts)))
        jobs += len(ids)
        if jobs >= MOST_JOBS:
            break
    return tuple(found)


def _extent(
    transaction: Transaction, identity: Identity, selection: JobSelection
) -> tuple[range, ClusterJob | StoredWorkflow | None]:
    """Return the ids of the selection, and what is selected as a whole: a workflow, or a cluster by its first job."""
    if selection.workflow:
        workflow = visible_workflow(transaction, identity, selection.id)
        return workflow.ids, workflow
    job = load_first_job(transaction.session, selection.id)
    if job is None or not may_change(identity, job.owner, job.vo) or job.ids.start != selection.id:
        return _id_of_single_job(transaction, identity, selection), None
    if selection.processes is None:
        return job.ids, job
    first, last = selection.processes
    if last >= len(job.ids):
        few = f"{len(job.ids)} jobs, the last is {job.ids.start}.{len(job.ids) - 1}"
        raise NotFoundError("job", f"{job.ids.start}.{last}; cluster {job.ids.start} has {few}")
    return job.ids[first : last + 1], None


def visible_workflow(transaction: Transaction, identity: Identity, workflow: int) -> StoredWorkflow:
    """Return a workflow that the caller may see; raises NotFoundError."""
    found = load_workflow(transaction.session, workflow)
    if found is None or not may_change(identity, found.owner, found.vo):
        raise NotFoundError("workflow", str(JobSelection(workflow, workflow=True)))
    return found


def extent_of(transaction: Transaction, identity: Identity, selection: JobSelection) -> range:
    """Return the ids of the selection; raises NotFoundError as `find_jobs` does."""
    return _extent(transaction, identity, selection)[0]


def _id_of_single_job(transaction: Transaction, identity: Identity, selection: JobSelection) -> range:
    """Return the id of a job that begins no cluster; it may be a race copy."""
    job = load_jobs(transaction.session, [selection.id]).get(selection.id)
    if job is None or selection.processes is not None or not may_change(identity, job.owner, job.vo):
        raise NotFoundError("job", str(selection))
    return range(job.id, job.id + 1)


def list_clusters(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    condition: JobCondition,
    page_size: int,
    page_token: str = "",
    workflow: int = 0,
) -> ClusterPage:
    """Return the next page of the clusters that have a wanted job, newest first; their counts are those of all jobs.

    A workflow is listed in place of its clusters. With `workflow`, only the clusters of this workflow are listed,
    also if it has another owner. A page may be empty although there are more.

    Raises
    ------
    InvalidInputError
        The condition is invalid or has an expression, or the token belongs to another query.
    NotFoundError
        The caller cannot see the workflow.
    """
    if condition.where:
        raise InvalidInputError(Violation("condition.where", "selects single jobs, not clusters; list jobs"))
    if workflow:
        found = visible_workflow(transaction, identity, workflow)
        condition = replace(condition, owner=found.owner, vo=found.vo, runs=(found.ids,))
    query = query_of(transaction, state, identity, condition, newest_first=True)
    key = (*query.key, str(workflow))
    before = position_of(page_token, key) if page_token else 0
    page = newest_clusters(
        transaction.session,
        JobFinder(transaction.session, query),
        before,
        page_size,
        MOST_JOBS,
        with_workflows=not workflow,
    )
    clusters = tuple(summary_of(each, count_by_state(transaction.session, each.ids)) for each in page.clusters)
    return ClusterPage(clusters, token_of(page.position, key) if page.position else "")


def summary_of(whole: ClusterJob | StoredWorkflow, counts: Mapping[JobState, int]) -> ClusterSummary:
    """Return a cluster or a workflow with the numbers of its jobs by state."""
    return ClusterSummary(
        id=whole.ids.start,
        jobs=len(whole.ids),
        counts=counts,
        owner=whole.owner,
        vo=whole.vo,
        group=whole.group,
        name=whole.name,
        submitted=whole.submitted,
        is_workflow=isinstance(whole, StoredWorkflow),
    )
