"""`after_settled`: jobs that run when their parents have ended or cannot run as things stand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.dependencies import MAX_IN_RANGES, faults_of
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.dependencies import EVENTS_AT_ONCE, advance
from pilotage_server.operations.jobs.new_jobs import PART_JOBS
from pilotage_server.operations.jobs.queries import details_of
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.rpc.jobs.wire import jobs_to_wire
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.database import has_lock_waiter
from support.dependent_jobs import ALICE, TRUE, DependentJobs
from support.virtual_clock import VirtualClock

AFTER, AFTER_OK, AFTER_ANY, AFTER_SETTLED = DependencyKind
BLOCKED, WAITING, RUNNING, DONE = JobState.BLOCKED, JobState.WAITING, JobState.RUNNING, JobState.DONE


def inner(child: int, kind: DependencyKind, *parents: int) -> Dependency:
    return Dependency(child, kind, (), parents)


def final(nodes: int) -> Dependency:
    """Return what the node after `nodes` others waits for, so that it runs last."""
    return Dependency(nodes, AFTER_SETTLED, ranges=((0, nodes - 1),))


@pytest.fixture
def jobs(database: Database, clock: VirtualClock) -> DependentJobs:
    return DependentJobs(database, clock)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_parent_that_ends_is_settled(jobs: DependentJobs, exit_code: int) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_SETTLED, parent)
    jobs.run(parent, exit_code=None)
    assert jobs.states(child) == [BLOCKED]
    jobs.finish(parent, exit_code)
    assert jobs.states(child) == [WAITING]
    assert jobs.rows() == {}


def shown_as_futile(jobs: DependentJobs, asked: Sequence[int]) -> list[int]:
    records = list(jobs.grid.jobs(asked).values())
    details = jobs.grid.read(lambda transaction, state: details_of(transaction, state, records))
    return sorted(job.id for job in jobs_to_wire(records, details) if job.futile)


def test_futile_jobs_are_shown_as_such_until_a_parent_is_rescheduled(jobs: DependentJobs) -> None:
    root, child, leaf, _ = all_jobs = jobs.submit(
        inner(1, AFTER_OK, 0), inner(2, AFTER_ANY, 1), inner(3, AFTER_SETTLED, 2), count=4
    )
    assert shown_as_futile(jobs, all_jobs) == []
    jobs.run(root, exit_code=1)
    assert shown_as_futile(jobs, all_jobs) == [child, leaf]
    jobs.change(JobChange.HOLD, leaf)
    assert shown_as_futile(jobs, all_jobs) == [child], "a held job waits for a person"
    jobs.change(JobChange.RELEASE, leaf)
    jobs.change(JobChange.RESCHEDULE, root)
    assert shown_as_futile(jobs, all_jobs) == []


def test_no_descendant_is_shown_as_futile_after_a_parent_was_rescheduled(jobs: DependentJobs) -> None:
    root, *descendants = all_jobs = jobs.submit(*(inner(child, AFTER_OK, child - 1) for child in range(1, 4)), count=4)
    jobs.run(root, exit_code=1)
    assert shown_as_futile(jobs, all_jobs) == descendants
    jobs.grid.change(JobChange.RESCHEDULE, root)
    assert shown_as_futile(jobs, all_jobs) == []
    while jobs.grid.write(advance):
        assert shown_as_futile(jobs, all_jobs) == []
    assert shown_as_futile(jobs, all_jobs) == []


@pytest.mark.parametrize("kind", [AFTER, AFTER_OK, AFTER_ANY])
def test_failed_root_settles_its_descendants(jobs: DependentJobs, kind: DependencyKind) -> None:
    root, middle, leaf, child = jobs.submit(
        inner(1, AFTER_OK, 0), inner(2, kind, 1), inner(3, AFTER_SETTLED, 2), count=4
    )
    grandchild = jobs.child(AFTER_SETTLED, leaf, child)
    jobs.run(root, exit_code=None)
    assert jobs.states(child, grandchild) == [BLOCKED, BLOCKED]
    jobs.finish(root, exit_code=1)
    assert jobs.states(middle, leaf, child, grandchild) == [BLOCKED, BLOCKED, WAITING, BLOCKED]
    jobs.run(child, exit_code=1)
    assert jobs.states(grandchild) == [WAITING]


def test_job_that_waits_only_for_settled_jobs_is_not_futile(jobs: DependentJobs) -> None:
    root, next_, last = jobs.submit(inner(1, AFTER_SETTLED, 0), inner(2, AFTER_SETTLED, 1), count=3)
    jobs.run(root, exit_code=1)
    assert jobs.states(next_, last) == [WAITING, BLOCKED]


def test_futile_job_is_settled_when_its_turn_comes(jobs: DependentJobs) -> None:
    root, running, futile, child = jobs.submit(
        inner(2, AFTER_OK, 0), inner(2, AFTER_SETTLED, 1), inner(3, AFTER_SETTLED, 2), count=4
    )
    late_child = jobs.child(AFTER_SETTLED, futile)
    jobs.run(root, running, exit_code=None)
    jobs.finish(root, exit_code=1)
    very_late_child = jobs.child(AFTER_SETTLED, futile)
    children = child, late_child, very_late_child
    assert jobs.states(futile, *children) == [BLOCKED] * 4
    jobs.finish(running)
    assert jobs.states(futile, *children) == [BLOCKED, WAITING, WAITING, WAITING]


@pytest.mark.parametrize("most", [1, 1000])
def test_lane_of_futile_jobs_takes_its_turns(jobs: DependentJobs, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotage_server.operations.jobs.dependencies.MET_AT_ONCE", most)
    root, first, *lane, last = jobs.submit(
        *(inner(node, AFTER_OK, 0) for node in range(2, 6)),
        *(inner(node, AFTER_SETTLED, node - 1) for node in range(2, 6)),
        inner(6, AFTER_SETTLED, 3, 5),
        count=7,
    )
    jobs.run(root, first, exit_code=None)
    jobs.finish(root, exit_code=1)
    assert jobs.states(*lane, last) == [BLOCKED] * 5
    jobs.finish(first, exit_code=1)
    assert jobs.states(*lane, last) == [BLOCKED] * 4 + [WAITING]
    jobs.change(JobChange.RESCHEDULE, root)
    jobs.run(root, last)
    jobs.run(*lane)
    assert jobs.rows() == {}


def test_jobs_that_are_settled_in_portions_are_examined_once(
    jobs: DependentJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage_server.operations.jobs.dependencies.MET_AT_ONCE", 2)
    failed, running, *_ = jobs.submit(
        *(inner(node, AFTER_OK, 0) for node in range(2, 6)),
        *(inner(node, AFTER_SETTLED, 1) for node in range(2, 6)),
        *(inner(node + 4, AFTER_SETTLED, node) for node in range(2, 6)),
        count=10,
    )
    jobs.run(failed, running, exit_code=None)
    jobs.finish(failed, exit_code=1)
    jobs.pilot.finish(next(lease for lease in jobs.pilot.held if lease.job_id == running))  # type: ignore[arg-type]
    assert jobs.grid.write(advance)
    assert jobs.rows()["parent_events"] == 2 + 1, "of two settled jobs, and of their parent"


def test_final_node_of_a_diamond_waits_for_all_that_can_run(jobs: DependentJobs) -> None:
    top, left, right, bottom, last = jobs.submit(
        inner(1, AFTER_OK, 0), inner(2, AFTER_OK, 0), inner(3, AFTER_OK, 1, 2), final(4), count=5
    )
    jobs.run(top)
    jobs.run(left, right, exit_code=None)
    jobs.finish(left, exit_code=1)
    assert jobs.states(right, bottom, last) == [RUNNING, BLOCKED, BLOCKED]
    jobs.finish(right)
    assert jobs.states(bottom, last) == [BLOCKED, WAITING]
    jobs.run(last)


def test_final_node_runs_last_when_all_is_well(jobs: DependentJobs) -> None:
    first, second, third, last = jobs.submit(inner(1, AFTER_OK, 0), final(3), count=4)
    jobs.run(first, third)
    assert jobs.states(second, last) == [WAITING, BLOCKED]
    jobs.run(second)
    jobs.run(last)
    assert jobs.rows() == {}


def test_held_parent_is_not_settled_until_it_is_removed(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_SETTLED, parent)
    jobs.change(JobChange.HOLD, parent)
    assert jobs.states(child) == [BLOCKED]
    jobs.change(JobChange.REMOVE, parent)
    assert jobs.states(child) == [WAITING]


def test_parent_behind_a_live_job_of_another_submission_is_not_settled(jobs: DependentJobs) -> None:
    (outside,) = jobs.submit()
    parent, child = jobs.submit(Dependency(0, AFTER_OK, (JobSelection(outside),)), inner(1, AFTER_SETTLED, 0), count=2)
    jobs.run(outside, exit_code=None)
    assert jobs.states(parent, child) == [BLOCKED, BLOCKED]
    jobs.finish(outside, exit_code=1)
    assert jobs.states(parent, child) == [BLOCKED, WAITING]


@pytest.mark.parametrize("others", [0, PART_JOBS])
def test_new_job_behind_a_failed_one_is_futile_at_once(jobs: DependentJobs, others: int) -> None:
    (failed,) = jobs.submit()
    jobs.run(failed, exit_code=1)
    futile = jobs.child(AFTER_OK, failed)
    settled = jobs.child(AFTER_SETTLED, futile)
    assert jobs.states(futile, settled) == [BLOCKED, WAITING]
    ids = jobs.accept(
        [TRUE, TRUE, TRUE, replace(TRUE, count=others + 1)],
        [Dependency(0, AFTER_OK, (JobSelection(futile),)), inner(1, AFTER_ANY, 0), inner(2, AFTER_SETTLED, 1)],
    )
    while jobs.store_part(ids[0]):
        pass
    jobs.grid.advance()
    assert jobs.states(*ids[:3]) == [BLOCKED, BLOCKED, WAITING]


def test_cluster_is_futile_when_one_of_its_jobs_has_failed_and_all_have_ended(jobs: DependentJobs) -> None:
    first = jobs.accept([JobDescription("/bin/true", count=3)], [])[0]
    child = jobs.child(AFTER_OK, first)
    settled = jobs.child(AFTER_SETTLED, child)
    jobs.run(first, first + 1, first + 2, exit_code=None)
    jobs.finish(first + 1, exit_code=1)
    jobs.finish(first + 2)
    assert jobs.states(child, settled) == [BLOCKED, BLOCKED]
    jobs.finish(first)
    assert jobs.states(child, settled) == [BLOCKED, WAITING]


def test_rescheduled_root_lets_its_descendants_count_again(jobs: DependentJobs) -> None:
    root, middle, leaf, other, last = jobs.submit(
        inner(1, AFTER_OK, 0), inner(2, AFTER_OK, 1), final(4), count=5, priority=1
    )
    jobs.run(root, other, exit_code=None)
    jobs.finish(root, exit_code=1)
    jobs.change(JobChange.RESCHEDULE, root)
    jobs.finish(other)
    for job_id in (root, middle, leaf):
        assert jobs.states(last) == [BLOCKED]
        jobs.run(job_id)
    jobs.run(last)
    assert jobs.rows() == {}


def test_repaired_root_frees_its_children_before_the_last_job_is_judged(jobs: DependentJobs) -> None:
    """All of it happens before an examination, as if the server had ended meanwhile."""
    root, middle, leaf, other, last = jobs.submit(inner(1, AFTER_OK, 0), inner(2, AFTER_OK, 1), final(4), count=5)
    jobs.run(root, other, exit_code=None)
    jobs.finish(root, exit_code=1)
    (lease,) = jobs.pilot.held
    jobs.grid.change(JobChange.RESCHEDULE, root)
    jobs.pilot.finish(jobs.pilot.take())
    jobs.pilot.finish(lease)  # type: ignore[arg-type]
    jobs.grid.advance()
    assert jobs.states(root, other, middle, leaf, last) == [DONE, DONE, WAITING, BLOCKED, BLOCKED]
    for job_id in (middle, leaf, last):
        jobs.run(job_id)


def test_parent_that_is_rescheduled_after_it_was_settled_runs_nothing_twice(jobs: DependentJobs) -> None:
    root, middle, last = jobs.submit(inner(1, AFTER_OK, 0), final(2), count=3)
    jobs.run(root, exit_code=1)
    jobs.run(last)
    jobs.change(JobChange.RESCHEDULE, root)
    jobs.run(root)
    jobs.run(middle)
    assert jobs.states(root, middle, last) == [DONE, DONE, DONE]
    assert jobs.grid.job(last).starts == 1
    assert jobs.rows() == {}


@pytest.mark.parametrize("exit_code", [0, 1])
def test_lanes_bound_the_jobs_that_run_and_do_not_stop(jobs: DependentJobs, exit_code: int) -> None:
    """Of six nodes at most two run at a time; three of them wait for a job that may fail."""
    lanes = [inner(node, AFTER_SETTLED, node - 2) for node in range(3, 7)]
    ids = jobs.submit(*lanes, *(inner(node, AFTER_OK, 0) for node in (1, 3, 4)), count=7)
    jobs.run(ids[0], ids[2], exit_code=None)
    assert jobs.states(*ids[1:]) == [BLOCKED, RUNNING, BLOCKED, BLOCKED, BLOCKED, BLOCKED]
    jobs.finish(ids[0], exit_code)
    jobs.finish(ids[2])
    waiting = [ids[1], ids[4]] if exit_code == 0 else [ids[5], ids[6]]
    assert {job_id for job_id in ids if jobs.states(job_id) == [WAITING]} == set(waiting)
    jobs.run(*waiting)
    if exit_code == 0:
        jobs.run(ids[3], ids[6])
        jobs.run(ids[5])


def test_server_that_starts_settles_what_another_has_left(jobs: DependentJobs) -> None:
    root, middle, last = jobs.submit(inner(1, AFTER_OK, 0), final(2), count=3)
    jobs.pilot.finish(jobs.pilot.take(), exit_code=1)
    assert jobs.grid.write(advance)  # it has not reached the last job yet
    assert jobs.states(root, middle, last) == [JobState.FAILED, BLOCKED, BLOCKED]
    jobs.grid.restarted().advance()
    assert jobs.states(middle, last) == [BLOCKED, WAITING]


def test_many_descendants_of_a_failed_job_are_settled(jobs: DependentJobs) -> None:
    nodes = EVENTS_AT_ONCE + 2
    dependencies = [inner(node, AFTER_OK, 0) for node in range(1, nodes)]
    ids = jobs.accept([TRUE] * (nodes + 1), [*dependencies, final(nodes)])
    while jobs.store_part(ids[0]):
        pass
    jobs.run(ids[0], exit_code=1)
    assert jobs.states(ids[1], ids[-2], ids[-1]) == [BLOCKED, BLOCKED, WAITING]


@pytest.mark.parametrize("kind", DependencyKind)
def test_range_of_descriptions_is_one_parent(jobs: DependentJobs, kind: DependencyKind) -> None:
    first, second, child = jobs.submit(Dependency(2, kind, ranges=((0, 1),)), count=3)
    assert jobs.seen(child).reason == "waits for 1 of 1 parent"
    jobs.run(first, second, exit_code=None)
    jobs.finish(first)
    jobs.finish(second)
    assert jobs.states(child) == [WAITING]


@pytest.mark.parametrize(
    ("dependencies", "fault"),
    [
        ([Dependency(1, AFTER_SETTLED, ranges=((0, 2),))], "circle: descriptions[1] → descriptions[1]"),
        (
            [Dependency(2, AFTER_SETTLED, ranges=((0, 1),)), inner(0, AFTER_ANY, 2)],
            "circle: descriptions[2] → descriptions[0] → descriptions[2]",
        ),
        (
            [inner(0, AFTER_OK, 1), *(Dependency(child, AFTER_OK, ranges=((0, 0),)) for child in (1, 2))],
            "circle: descriptions[0] → descriptions[1] → descriptions[0]",
        ),
        (
            [Dependency(2, AFTER_OK, ranges=((0, MAX_IN_RANGES),))],
            f"{MAX_IN_RANGES + 1} descriptions in all, more than the {MAX_IN_RANGES}",
        ),
    ],
)
def test_bad_ranges_are_refused(jobs: DependentJobs, dependencies: list[Dependency], fault: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        jobs.submit(*dependencies, count=3)
    assert fault in str(refused.value)


def test_children_of_one_range_share_it(jobs: DependentJobs) -> None:
    shared = ((0, MAX_IN_RANGES - 1),)
    assert faults_of([Dependency(MAX_IN_RANGES + child, AFTER_OK, ranges=shared) for child in range(3)]) == []


def test_why_shows_what_the_last_job_waits_for(jobs: DependentJobs) -> None:
    running, middle, last = jobs.submit(inner(1, AFTER_OK, 0), final(2), count=3)
    jobs.run(running, exit_code=None)
    path = [(each.kind, each.job.id) for each in jobs.grid.why(last).blockers]
    assert path == [(AFTER_SETTLED, middle), (AFTER_OK, running)]


def test_submission_waits_for_an_examination_of_its_parents(postgresql_database: Database, clock: VirtualClock) -> None:
    """Else it could watch a parent as one that can run, while the examination finds no job that watches it."""
    jobs = DependentJobs(postgresql_database, clock)
    root, parent = jobs.submit(inner(1, AFTER_OK, 0), count=2)
    jobs.pilot.finish(jobs.pilot.take(), exit_code=1)
    examiner = ThreadPoolExecutor(1)

    def submit(transaction: Transaction) -> tuple[int, Future[Any]]:
        dependencies = [Dependency(0, AFTER_SETTLED, (JobSelection(parent),))]
        groups = single_groups([TRUE])
        (child,) = submit_jobs(transaction, jobs.grid.state, ALICE, groups, dependencies=dependencies).job_ids
        examination = examiner.submit(jobs.grid.advance)
        while not postgresql_database.read(has_lock_waiter):
            assert not examination.done()
        return child, examination

    with examiner:
        child, examination = postgresql_database.write(submit)
        examination.result(timeout=30)
    assert jobs.states(root, parent, child) == [JobState.FAILED, BLOCKED, WAITING]
