"""Workflows: all jobs of a submission as one thing, which is selected, listed, waited for and removed as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from pilotage.errors import InvalidInputError, NotFoundError, StateConflictError
from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.jobs import JobCondition, SubmittedJobs
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.clusters import ClusterSummary, SelectedJobs
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import LIVE, JobState
from pilotage_server.operations.jobs.clusters import find_jobs, list_clusters
from pilotage_server.operations.jobs.new_jobs import PART_JOBS
from pilotage_server.operations.jobs.retention import remove_finished
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.submission.workflows import load_workflow
from support.dependent_jobs import ALICE, TRUE, DependentJobs
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

BOB = a_user("bob")
ALL = JobCondition()
ARRAY = JobDescription("/bin/true", count=3)


class Workflows(DependentJobs):
    """A grid with workflows."""

    def new(
        self, *descriptions: JobDescription, name: str = "flow.dag", dependencies: Sequence[Dependency] = ()
    ) -> SubmittedJobs:
        """Submit a workflow; of a long one only the first part is stored."""
        groups = single_groups(descriptions or [TRUE, ARRAY])
        return self.grid.write(
            lambda transaction, state: submit_jobs(
                transaction, state, ALICE, groups, workflow=name, dependencies=dependencies
            )
        )

    def find(
        self, selection: JobSelection, *states: JobState, identity: Identity = ALICE
    ) -> tuple[list[int], ClusterSummary]:
        """Return the jobs, and what is selected as a whole."""

        def find(transaction: Any, _: Any) -> tuple[SelectedJobs, ...]:
            return find_jobs(transaction, identity, [selection], states)

        (found,) = self.grid.read(find)
        assert found.cluster is not None
        return [job_id for run in found.runs for job_id in run], found.cluster

    def listed(
        self, wanted: JobCondition = ALL, *, workflow: int = 0, identity: Identity = ALICE, size: int = 1
    ) -> list[tuple[int, int, bool]]:
        """Return id, number of jobs, and whether it is a workflow, of what is listed; from all pages."""
        found: list[tuple[int, int, bool]] = []
        token = ""
        while True:
            page = self.grid.read(
                lambda transaction, state: list_clusters(transaction, state, identity, wanted, size, token, workflow)  # noqa: B023
            )
            found += ((each.id, each.jobs, each.is_workflow) for each in page.clusters)
            token = page.next_page_token
            if not token:
                return found


def whole(workflow: int) -> JobSelection:
    return JobSelection(workflow, workflow=True)


@pytest.fixture
def flows(database: Database, clock: VirtualClock) -> Workflows:
    return Workflows(database, clock)


def test_workflow_is_selected_as_a_whole_with_its_counts(flows: Workflows) -> None:
    flows.submit()
    submitted = flows.new()
    flows.submit()
    assert submitted.workflow == submitted.job_ids[0]
    flows.change(JobChange.HOLD, submitted.job_ids[2])
    ids, flow = flows.find(whole(submitted.workflow))
    assert ids == [*submitted.job_ids]
    assert (flow.id, flow.jobs, flow.name, flow.is_workflow) == (submitted.workflow, 4, "flow.dag", True)
    assert flow.counts == {JobState.WAITING: 3, JobState.HELD: 1}
    assert flows.find(whole(submitted.workflow), JobState.HELD)[0] == [submitted.job_ids[2]]
    ids, cluster = flows.find(JobSelection(submitted.workflow))
    assert (ids, cluster.is_workflow) == ([submitted.workflow], False)


def test_states_choose_among_the_jobs_of_a_workflow_of_one_job(flows: Workflows) -> None:
    workflow = flows.new(TRUE).workflow
    assert flows.find(whole(workflow), JobState.FAILED)[0] == []


def test_other_owners_do_not_see_a_workflow(flows: Workflows) -> None:
    (before,) = flows.submit()
    workflow = flows.new().workflow
    for selection in (whole(workflow), whole(before), whole(workflow + 1), whole(999)):
        identity = BOB if selection.id == workflow else ALICE
        with pytest.raises(NotFoundError, match=f"there is no workflow {selection}"):
            flows.find(selection, identity=identity)
    with pytest.raises(NotFoundError, match=f"there is no workflow w{workflow}"):
        flows.listed(workflow=workflow, identity=BOB)
    assert flows.listed(JobCondition(owner="*"), identity=BOB) == []
    assert flows.find(whole(workflow), identity=an_operator())[1].owner == "alice"
    assert len(flows.listed(workflow=workflow, identity=an_operator())) == 2


@pytest.mark.parametrize("size", [1, 2, 100])
def test_listing_shows_a_workflow_in_place_of_its_clusters(flows: Workflows, size: int) -> None:
    before = flows.accept([ARRAY], [])[0]
    first = flows.new(TRUE, TRUE, ARRAY).workflow
    second = flows.new(ARRAY).workflow
    (between,) = flows.submit()
    third = flows.new().workflow
    (after,) = flows.submit()
    assert flows.listed(size=size) == [
        (after, 1, False),
        (third, 4, True),
        (between, 1, False),
        (second, 3, True),
        (first, 5, True),
        (before, 3, False),
    ]
    assert flows.listed(workflow=first, size=size) == [
        (first + 2, 3, False),
        (first + 1, 1, False),
        (first, 1, False),
    ]


def test_listing_has_workflows_with_a_wanted_job(flows: Workflows) -> None:
    first, second = flows.new(), flows.new()
    flows.change(JobChange.REMOVE, *first.job_ids, *second.job_ids[:-1])
    live = JobCondition(LIVE)
    assert flows.listed(live) == [(second.workflow, 4, True)]
    assert flows.listed(live, workflow=second.workflow) == [(second.job_ids[1], 3, False)]
    removed = JobCondition(frozenset({JobState.REMOVED}))
    assert flows.listed(removed) == [(second.workflow, 4, True), (first.workflow, 4, True)]


def test_workflow_of_a_long_submission_counts_what_is_stored(flows: Workflows) -> None:
    submitted = flows.new(JobDescription("/bin/true", count=PART_JOBS), ARRAY)
    workflow = whole(submitted.workflow)
    assert flows.find(workflow)[1].counts == {JobState.WAITING: PART_JOBS}
    with pytest.raises(StateConflictError, match=f"w{submitted.workflow} is still being stored"):
        flows.submit(Dependency(0, DependencyKind.AFTER_OK, (workflow,)))
    while flows.store_part(submitted.workflow):
        pass
    assert flows.find(workflow)[1].counts == {JobState.WAITING: PART_JOBS + 3}


def test_child_of_a_workflow_waits_for_all_of_its_jobs(flows: Workflows) -> None:
    submitted = flows.new(TRUE, TRUE)
    child = flows.child(DependencyKind.AFTER_OK, f"w{submitted.workflow}")
    for job_id in submitted.job_ids:
        assert flows.states(child) == [JobState.BLOCKED]
        flows.change(JobChange.HOLD, *[each for each in submitted.job_ids if each > job_id])
        flows.run(job_id)
        flows.change(JobChange.RELEASE, *[each for each in submitted.job_ids if each > job_id])
    assert flows.states(child) == [JobState.WAITING]
    with pytest.raises(InvalidInputError, match=r"dependencies\[0\]: there is no job or cluster w77"):
        flows.child(DependencyKind.AFTER_OK, "w77")


def test_failed_jobs_that_run_again_continue_a_workflow(flows: Workflows) -> None:
    dependencies = [Dependency(1, DependencyKind.AFTER_OK, (), (0,)), Dependency(2, DependencyKind.AFTER_OK, (), (1,))]
    submitted = flows.new(TRUE, TRUE, TRUE, dependencies=dependencies)
    first, second, third = submitted.job_ids
    flows.run(first)
    flows.run(second, exit_code=1)
    failed, flow = flows.find(whole(first), JobState.FAILED, JobState.REMOVED)
    assert (failed, flow.counts) == ([second], {JobState.DONE: 1, JobState.FAILED: 1, JobState.BLOCKED: 1})
    flows.change(JobChange.RESCHEDULE, *failed)
    flows.run(second)
    flows.run(third)
    assert flows.find(whole(first))[1].counts == {JobState.DONE: 3}


def test_workflow_goes_away_with_its_last_job(flows: Workflows) -> None:
    submitted, other = flows.new(), flows.new()
    kept = flows.grid.state.rules.retention.finished_jobs + timedelta(days=1)

    def is_left(workflow: int) -> bool:
        return flows.grid.read(lambda transaction, _: load_workflow(transaction.session, workflow)) is not None

    flows.change(JobChange.REMOVE, *submitted.job_ids[1:])
    flows.grid.clock.advance(kept)
    assert flows.grid.write(remove_finished) == 3
    ids, flow = flows.find(whole(submitted.workflow))
    assert (ids, flow.jobs, flow.counts) == ([submitted.workflow], 4, {JobState.WAITING: 1})
    flows.change(JobChange.REMOVE, submitted.workflow)
    flows.grid.clock.advance(kept)
    assert flows.grid.write(remove_finished) == 1
    assert (is_left(submitted.workflow), is_left(other.workflow)) == (False, True)
