"""Graphs of workflows: they stay when their edges are met, show the states of now, and are seen by their owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.clusters import WorkflowView
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs import workflows
from pilotage_server.operations.jobs.retention import remove_finished
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database.engine import Database
from support.dependent_jobs import ALICE, TRUE, DependentJobs
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

OK, ANY = DependencyKind.AFTER_OK, DependencyKind.AFTER_ANY
ARRAY = replace(TRUE, name="sim-$(Process)", count=3)
GENERATE, MERGE = replace(TRUE, name="generate"), replace(TRUE, name="merge")
BOB = a_user("bob")


class Graphs(DependentJobs):
    """A grid with workflows that are looked at."""

    def new(self, descriptions: Sequence[JobDescription], *dependencies: Dependency, user: Identity = ALICE) -> int:
        """Submit a workflow and return its id."""
        groups = single_groups(descriptions)
        submitted = self.grid.write(
            lambda transaction, state: submit_jobs(
                transaction, state, user, groups, workflow="flow.dag", dependencies=dependencies
            )
        )
        return submitted.workflow

    def view(self, workflow: int, identity: Identity = ALICE) -> WorkflowView:
        return self.grid.read(lambda transaction, _: workflows.view_workflow(transaction, identity, workflow))

    def of_job(self, job_id: int, identity: Identity = ALICE) -> WorkflowView:
        return self.grid.read(lambda transaction, _: workflows.view_workflow_of(transaction, identity, job_id))

    def listed(self, owner: str = "", identity: Identity = ALICE, size: int = 2) -> list[int]:
        """Return the ids of all pages."""
        found: list[int] = []
        token = ""
        while True:
            page = self.grid.read(
                lambda transaction, _: workflows.list_workflows(transaction, identity, owner, size, token)  # noqa: B023
            )
            assert len(page.clusters) <= size
            found += (each.id for each in page.clusters)
            token = page.next_page_token
            if not token:
                return found


@pytest.fixture
def graphs(database: Database, clock: VirtualClock) -> Graphs:
    return Graphs(database, clock)


def steps(view: WorkflowView) -> list[tuple[str, dict[JobState, int]]]:
    return [(each.name, dict(each.counts)) for each in view.steps]


def fan(graphs: Graphs) -> int:
    """Submit a job, an array that waits for it, and a job that waits for the array."""
    merged = Dependency(2, ANY, descriptions=(1,))
    return graphs.new([GENERATE, ARRAY, MERGE], Dependency(1, OK, descriptions=(0,)), merged)


def test_graph_stays_while_its_jobs_run(graphs: Graphs) -> None:
    first = fan(graphs)
    view = graphs.view(first)
    assert steps(view) == [
        ("generate", {JobState.WAITING: 1}),
        ("sim-0", {JobState.BLOCKED: 3}),
        ("merge", {JobState.BLOCKED: 1}),
    ]
    assert view.edges == ((OK, 0, 1), (ANY, 1, 2))
    assert (view.summary.name, view.summary.counts) == ("flow.dag", {JobState.WAITING: 1, JobState.BLOCKED: 4})

    graphs.run(first)
    graphs.run(first + 1, first + 2, first + 3, exit_code=None)
    graphs.finish(first + 2, exit_code=3)
    view = graphs.view(first)
    assert steps(view) == [
        ("generate", {JobState.DONE: 1}),
        ("sim-0", {JobState.RUNNING: 2, JobState.FAILED: 1}),
        ("merge", {JobState.BLOCKED: 1}),
    ]
    assert view.edges == ((OK, 0, 1), (ANY, 1, 2))


def test_jobs_outside_have_states_and_no_names(graphs: Graphs) -> None:
    (before,) = graphs.submit(name="before")
    array = graphs.new([ARRAY])
    parents = (JobSelection(before), JobSelection(array))
    first = graphs.new([GENERATE], Dependency(0, OK, parents))
    graphs.run(before, *range(array, array + 3))
    view = graphs.view(first)
    assert [(each.ids.start, each.name, each.outside) for each in view.steps] == [
        (first, "generate", False),
        (before, "", True),
        (array, "", True),
    ]
    assert [dict(each.counts) for each in view.steps[1:]] == [{JobState.DONE: 1}, {JobState.DONE: 3}]
    assert view.edges == ((OK, 1, 0), (OK, 2, 0))


def test_workflow_is_found_by_any_of_its_jobs(graphs: Graphs) -> None:
    first, (alone,) = fan(graphs), graphs.submit()
    for job_id in range(first, first + 5):
        assert graphs.of_job(job_id).summary.id == first
    with pytest.raises(NotFoundError, match=f"workflow of job {alone}"):
        graphs.of_job(alone)


def test_graphs_are_seen_by_owners_and_operators(graphs: Graphs) -> None:
    first = fan(graphs)
    assert len(graphs.view(first, an_operator()).steps) == 3
    for stranger in (BOB, a_user("alice", vo="elsewhere")):
        with pytest.raises(NotFoundError):
            graphs.view(first, stranger)
        with pytest.raises(NotFoundError, match=f"there is no job {first}"):
            graphs.of_job(first, stranger)


def test_list_has_the_newest_workflows_of_owners(graphs: Graphs) -> None:
    own = [graphs.new([TRUE]) for _ in range(3)]
    graphs.submit()
    other = graphs.new([TRUE], user=BOB)
    assert graphs.listed() == graphs.listed("*") == own[::-1]
    assert graphs.listed("bob") == []
    assert graphs.listed("*", an_operator()) == [other, *own[::-1]]
    assert graphs.listed("alice", an_operator()) == own[::-1]
    assert graphs.listed("*", an_operator(), size=4) == [other, *own[::-1]]


def test_token_of_another_list_is_refused(graphs: Graphs) -> None:
    for _ in range(2):
        graphs.new([TRUE])
    page = graphs.grid.read(lambda transaction, _: workflows.list_workflows(transaction, ALICE, "", 1))
    with pytest.raises(InvalidInputError, match="other filters"):
        graphs.grid.read(
            lambda transaction, _: workflows.list_workflows(transaction, an_operator(), "*", 1, page.next_page_token)
        )


def test_steps_whose_jobs_retention_has_removed_stay(graphs: Graphs) -> None:
    first = fan(graphs)
    graphs.run(first)
    graphs.grid.clock.advance(graphs.grid.state.rules.retention.finished_jobs + timedelta(days=1))
    assert graphs.grid.write(remove_finished) == 1
    view = graphs.view(first)
    assert steps(view)[0] == ("", {})
    assert steps(view)[1] == ("sim-0", {JobState.WAITING: 3})


def test_graph_that_is_too_large_is_not_kept_but_counts_are(graphs: Graphs) -> None:
    chain = [Dependency(child, OK, descriptions=(child - 1,)) for child in range(1, 401)]
    view = graphs.view(graphs.new([TRUE] * 401, *chain))
    assert (view.steps, view.edges) == ((), ())
    assert view.summary.counts == {JobState.WAITING: 1, JobState.BLOCKED: 400}
