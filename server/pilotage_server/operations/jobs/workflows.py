"""Workflows in lists, and the graph of one with the present states of its jobs."""

from __future__ import annotations

from collections import Counter

from pilotage.errors import NotFoundError
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.clusters import ClusterSummary, WorkflowStep, WorkflowView
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.operations.jobs.clusters import ClusterPage, summary_of, visible_workflow
from pilotage_server.operations.jobs.conditions import visible_jobs
from pilotage_server.operations.jobs.queries import visible_job
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.submission.clusters import count_by_state, count_each_by_state
from pilotage_server.storage.submission.workflows import load_graph, newest_workflow, newest_workflows

MOST_LISTED_JOBS = 250_000
"""A page of workflows ends once these have so many jobs: counting them takes a fifth of a second."""


def list_workflows(
    transaction: Transaction, identity: Identity, owner: str, page_size: int, page_token: str = ""
) -> ClusterPage:
    """Return the next page of workflows, newest first. `owner` "" = the caller, "*" = all that the caller may see.

    Raises InvalidInputError for a token of another query.
    """
    visible = visible_jobs(identity, owner, "*" if identity.sees_everything and owner else "")
    if visible is None:
        return ClusterPage((), "")
    key = ("workflows", str(visible.owner), str(visible.vo))
    before = position_of(page_token, key) if page_token else 0
    found = newest_workflows(transaction.session, *visible, before, page_size + 1)
    listed: list[ClusterSummary] = []
    jobs = 0
    for each in found[:page_size]:
        listed.append(summary_of(each, count_by_state(transaction.session, each.ids)))
        jobs += len(each.ids)
        if jobs >= MOST_LISTED_JOBS:
            break
    return ClusterPage(tuple(listed), token_of(listed[-1].id, key) if len(listed) < len(found) else "")


def view_workflow(transaction: Transaction, identity: Identity, workflow: int) -> WorkflowView:
    """Return a workflow with its graph; raises NotFoundError if the caller cannot see it."""
    session = transaction.session
    found = visible_workflow(transaction, identity, workflow)
    graph = load_graph(session, workflow)
    if graph is None:
        return WorkflowView(summary_of(found, count_by_state(session, found.ids)))
    jobs = graph.all_jobs(workflow)
    own = len(graph.steps)
    counts_of_steps = count_each_by_state(session, jobs)
    counts = Counter[JobState]()
    for each in counts_of_steps[:own]:  # each job of the workflow is in one step
        counts.update(each)
    firsts = load_jobs(session, [ids.start for ids in jobs[:own]])
    steps = tuple(
        WorkflowStep(ids, firsts[ids.start].name if ids.start in firsts else "", of_step, outside=place >= own)
        for place, (ids, of_step) in enumerate(zip(jobs, counts_of_steps, strict=True))
    )
    return WorkflowView(summary_of(found, counts), steps, graph.edges)


def view_workflow_of(transaction: Transaction, identity: Identity, job_id: int) -> WorkflowView:
    """Return the workflow of a job; raises NotFoundError if the caller cannot see the job, or it is in none."""
    workflow = workflow_of(transaction, visible_job(transaction, identity, job_id))
    if not workflow:
        raise NotFoundError("workflow of job", str(job_id))
    return view_workflow(transaction, identity, workflow)


def workflow_of(transaction: Transaction, job: JobRecord) -> int:
    """Return the id of a job's workflow, 0 = it is in none; a race copy has that of its original."""
    found = newest_workflow(transaction.session, job.race or job.id)
    return found.ids.start if found is not None and (job.race or job.id) in found.ids else 0
