"""Dependencies: which jobs are blocked, what frees them, failed parents, long submissions, retention, and races."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.dependencies import advance, find_parents, plan_dependencies
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.new_jobs import PART_JOBS
from pilotage_server.operations.jobs.retention import remove_finished
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.dependencies import (
    _DEPENDANTS,
    _EVENTS_OF_CHILDREN,
    _EVENTS_OF_FUTILE_JOBS,
    _FUTILE_BLOCKS,
    _LAST_OPEN,
    _LAST_UNDONE,
    _MET,
    _NEXT_FREE,
    _OF_WATCHED,
    _REPEAT_EVENTS,
    _UNSETTLED_BLOCKS,
    has_work,
)
from support.database import has_lock_waiter
from support.dependent_jobs import ALICE, TRUE, DependentJobs
from support.grid import LONG, Grid, a_slot, a_tree
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

AFTER, AFTER_OK, AFTER_ANY, AFTER_SETTLED = DependencyKind
BLOCKED, WAITING, HELD, REMOVED, DONE = (
    JobState.BLOCKED,
    JobState.WAITING,
    JobState.HELD,
    JobState.REMOVED,
    JobState.DONE,
)


@pytest.fixture
def jobs(database: Database, clock: VirtualClock) -> DependentJobs:
    return DependentJobs(database, clock)


@pytest.mark.parametrize(
    ("kind", "exit_code", "after_start", "after_end"),
    [
        (AFTER, 0, WAITING, WAITING),
        (AFTER_ANY, 0, BLOCKED, WAITING),
        (AFTER_ANY, 1, BLOCKED, WAITING),
        (AFTER_OK, 0, BLOCKED, WAITING),
        (AFTER_OK, 1, BLOCKED, BLOCKED),
    ],
)
def test_child_is_freed_by_what_it_waits_for(
    jobs: DependentJobs, kind: DependencyKind, exit_code: int, after_start: JobState, after_end: JobState
) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(kind, parent)
    assert jobs.states(parent, child) == [WAITING, BLOCKED]
    jobs.run(parent, exit_code=None)
    assert jobs.states(child) == [after_start]
    jobs.finish(parent, exit_code)
    assert jobs.states(child) == [after_end]
    if after_end is WAITING:
        assert jobs.causes(child) == [JobCause.BLOCKED, JobCause.UNBLOCKED]
        assert jobs.rows() == {}
        jobs.run(child)
        assert jobs.states(child) == [DONE]


def test_removed_parent_that_never_started_frees_children_but_not_after_ok(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    after, after_any, after_ok = (jobs.child(kind, parent) for kind in (AFTER, AFTER_ANY, AFTER_OK))
    jobs.change(JobChange.REMOVE, parent)
    assert jobs.states(after, after_any, after_ok) == [WAITING, WAITING, BLOCKED]
    assert jobs.seen(after_ok).reason == f"parent {parent} is REMOVED; waits for 1 of 1 parent"


def test_rescheduled_parent_that_ends_well_continues_the_graph(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent)
    jobs.run(parent, exit_code=3)
    assert jobs.seen(child).reason == f"parent {parent} is FAILED; waits for 1 of 1 parent"
    jobs.change(JobChange.RESCHEDULE, parent)
    assert jobs.seen(child).reason == "waits for 1 of 1 parent"
    jobs.run(parent)
    assert jobs.states(child) == [WAITING]


def test_parents_that_have_ended_count_as_they_are(jobs: DependentJobs) -> None:
    done, failed = jobs.submit()[0], jobs.submit()[0]
    for match in jobs.pilot.request_jobs(a_slot("s1"), a_slot("s2")).matches:
        jobs.pilot.finish(match, 0 if match.job_id == done else 1)
    assert jobs.states(jobs.child(AFTER_OK, done)) == [WAITING]
    assert jobs.states(jobs.child(AFTER_ANY, done, failed)) == [WAITING]
    both = jobs.child(AFTER_OK, done, failed)
    assert jobs.seen(both).reason == f"parent {failed} is FAILED; waits for 1 of 2 parents"
    submitted = jobs.grid.write(
        lambda transaction, state: submit_jobs(
            transaction,
            state,
            ALICE,
            single_groups([TRUE]),
            dependencies=[Dependency(0, AFTER_OK, (JobSelection(failed),))],
        )
    )
    (warning,) = submitted.warnings
    assert warning.startswith(f"parent {failed} is FAILED: its children with after_ok stay blocked")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_cluster_is_one_parent_that_ends_with_its_last_job(jobs: DependentJobs, order: tuple[int, ...]) -> None:
    first = jobs.accept([JobDescription("/bin/true", count=3)], [])[0]
    child = jobs.child(AFTER_OK, first)
    jobs.run(first, first + 1, first + 2, exit_code=None)
    for number in order:
        assert jobs.states(child) == [BLOCKED]
        assert jobs.seen(child).reason == "waits for 1 of 1 parent"
        jobs.finish(first + number)
    assert jobs.states(child) == [WAITING]
    assert jobs.rows() == {}


def test_part_of_a_cluster_is_one_parent(jobs: DependentJobs) -> None:
    first = jobs.accept([JobDescription("/bin/true", count=4)], [])[0]
    child = jobs.child(AFTER_OK, f"{first}.1-2")
    jobs.run(*range(first, first + 4), exit_code=None)
    jobs.finish(first + 1)
    assert jobs.states(child) == [BLOCKED]
    jobs.finish(first + 2)
    assert jobs.states(child, first, first + 3) == [WAITING, JobState.RUNNING, JobState.RUNNING]


def test_cluster_of_several_descriptions_is_one_parent(jobs: DependentJobs) -> None:
    more = replace(TRUE, arguments="2", continues_cluster=True)
    first, second, other = jobs.accept([TRUE, more, TRUE], [Dependency(2, AFTER_OK, (), (0,))])
    child = jobs.child(AFTER_OK, first)
    jobs.run(first, second, exit_code=None)
    jobs.finish(first)
    assert jobs.states(child, other) == [BLOCKED, WAITING]
    jobs.finish(second)
    assert jobs.states(child) == [WAITING]


@pytest.mark.parametrize("name", ["", ".0-2"])
def test_jobs_that_retention_has_removed_do_not_count(jobs: DependentJobs, name: str) -> None:
    first = jobs.accept([JobDescription("/bin/true", count=3)], [])[0]
    jobs.run(*range(first, first + 3), exit_code=None)
    jobs.finish(first)
    jobs.grid.write(lambda transaction, _: sql.execute(transaction.session, "DELETE FROM jobs WHERE id = ?", first))
    child = jobs.child(AFTER_OK, f"{first}{name}")
    jobs.finish(first + 1)
    assert jobs.states(child) == [BLOCKED]
    jobs.finish(first + 2)
    assert jobs.states(child) == [WAITING]
    with pytest.raises(InvalidInputError, match=f"there is no job or cluster {first}.0"):
        jobs.child(AFTER_OK, f"{first}.0")


def test_parent_that_is_retried_has_not_ended(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit(retries=1)
    started, ok, any_ = (jobs.child(kind, parent) for kind in (AFTER, AFTER_OK, AFTER_ANY))
    jobs.run(parent, exit_code=1)
    assert jobs.states(parent, started, ok, any_) == [WAITING, WAITING, BLOCKED, BLOCKED]
    assert JobCause.RETRIED in jobs.causes(parent)
    jobs.run(parent, started)
    assert jobs.states(parent, ok, any_) == [DONE, WAITING, WAITING]


@pytest.mark.parametrize(("exit_code", "state"), [(3, WAITING), (0, BLOCKED)])
def test_success_exit_code_of_a_parent_frees_its_children(jobs: DependentJobs, exit_code: int, state: JobState) -> None:
    (parent,) = jobs.submit(success_exit_code=3)
    child = jobs.child(AFTER_OK, parent)
    jobs.run(parent, exit_code=exit_code)
    assert jobs.states(child) == [state]


def test_one_failed_job_of_a_cluster_blocks_until_it_ends_well(jobs: DependentJobs) -> None:
    first = jobs.accept([JobDescription("/bin/true", count=3)], [])[0]
    ok, any_, single = jobs.child(AFTER_OK, first), jobs.child(AFTER_ANY, first), jobs.child(AFTER_OK, f"{first}.2")
    jobs.run(first, first + 1, first + 2, exit_code=None)
    jobs.finish(first, exit_code=1)
    jobs.finish(first + 2)
    assert jobs.states(ok, any_, single) == [BLOCKED, BLOCKED, WAITING]
    jobs.finish(first + 1)
    assert jobs.states(ok, any_) == [BLOCKED, WAITING]
    assert jobs.seen(ok).reason == f"parent {first} is FAILED; waits for 1 of 1 parent"
    jobs.change(JobChange.RESCHEDULE, first)
    jobs.run(first, any_, single)
    assert jobs.states(ok) == [WAITING]


def test_array_of_children_is_freed_as_a_whole(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    ids = jobs.accept(
        [JobDescription("/bin/true", count=PART_JOBS + 5)], [Dependency(0, AFTER_OK, (JobSelection(parent),))]
    )
    while jobs.store_part(ids[0]):
        pass
    jobs.change(JobChange.REMOVE, ids[1])
    jobs.change(JobChange.HOLD, ids[2])
    jobs.run(parent)
    expected = [WAITING, REMOVED, HELD, *[WAITING] * (PART_JOBS + 2)]
    assert jobs.states(*ids) == expected
    assert jobs.rows() == {}
    waiting = jobs.grid.state.waiting
    assert sum(each.count for each in waiting.waiting()) == PART_JOBS + 3


def test_held_child_is_blocked_again_when_it_is_released(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    held = jobs.child(AFTER_OK, parent, hold=True)
    assert jobs.states(held) == [HELD]
    jobs.change(JobChange.RELEASE, held)
    assert jobs.states(held) == [BLOCKED]
    jobs.change(JobChange.HOLD, held)
    jobs.run(parent)
    assert jobs.states(held) == [HELD]
    jobs.change(JobChange.RELEASE, held)
    assert jobs.states(held) == [WAITING]


def test_removed_child_is_blocked_again_when_it_is_rescheduled(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent)
    grandchild = jobs.child(AFTER_OK, child)
    jobs.change(JobChange.REMOVE, child)
    assert jobs.seen(grandchild).reason == f"parent {child} is REMOVED; waits for 1 of 1 parent"
    jobs.change(JobChange.RESCHEDULE, child)
    assert jobs.states(child, grandchild) == [BLOCKED, BLOCKED]
    jobs.run(parent)
    jobs.run(child)
    assert jobs.states(grandchild) == [WAITING]


def test_blocked_job_cannot_be_released_and_says_why(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent)
    (result,) = jobs.grid.write(
        lambda transaction, state: change_jobs(transaction, state, ALICE, [child], JobChange.RELEASE, "")
    )
    assert result.refusal == f"job {child} is BLOCKED; what its parents do frees it, see `pilotage why {child}`"


def test_diamond_in_one_submission_runs_in_order(jobs: DependentJobs) -> None:
    top, left, right, bottom = jobs.submit(
        Dependency(1, AFTER_OK, (), (0,)),
        Dependency(2, AFTER_OK, (), (0,)),
        Dependency(3, AFTER_OK, (), (1, 2)),
        count=4,
    )
    assert jobs.states(top, left, right, bottom) == [WAITING, BLOCKED, BLOCKED, BLOCKED]
    assert jobs.seen(bottom).reason == "waits for 2 of 2 parents"
    jobs.run(top)
    assert jobs.states(left, right, bottom) == [WAITING, WAITING, BLOCKED]
    jobs.run(left, right)
    assert jobs.states(bottom) == [WAITING]
    assert jobs.rows() == {}


def test_children_before_their_parents_in_a_submission(jobs: DependentJobs) -> None:
    child, parent = jobs.submit(Dependency(0, AFTER_ANY, (), (1,)), count=2)
    assert jobs.states(child, parent) == [BLOCKED, WAITING]
    jobs.run(parent, exit_code=1)
    assert jobs.states(child) == [WAITING]


@pytest.mark.parametrize("first_is_parent", [True, False])
def test_parents_and_children_in_different_parts_of_a_submission(jobs: DependentJobs, first_is_parent: bool) -> None:
    others = JobDescription("/bin/true", count=2 * PART_JOBS, priority=-1)
    parent, child = JobDescription("/bin/true", priority=1), JobDescription("/bin/true", priority=2)
    descriptions = [parent, others, child] if first_is_parent else [child, others, parent]
    index_of_parent, index_of_child = (0, 2) if first_is_parent else (2, 0)
    ids = jobs.accept(descriptions, [Dependency(index_of_child, AFTER_OK, (), (index_of_parent,))])
    parent_id, child_id = (ids[0], ids[-1]) if first_is_parent else (ids[-1], ids[0])
    if first_is_parent:  # it ends before the child is stored
        match = jobs.pilot.take()
        assert match.job_id == parent_id
        jobs.pilot.finish(match)
        jobs.grid.advance()
    while jobs.store_part(ids[0]):
        pass
    jobs.grid.advance()
    if not first_is_parent:
        assert jobs.states(child_id) == [BLOCKED]
        match = jobs.pilot.take()
        assert match.job_id == parent_id
        jobs.pilot.finish(match)
        jobs.grid.advance()
    assert jobs.states(child_id) == [WAITING]
    assert jobs.rows() == {}


def test_existing_parent_that_ends_before_its_child_is_stored(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit(priority=5)
    ids = jobs.accept(
        [JobDescription("/bin/true", count=PART_JOBS + 1), JobDescription("/bin/true", priority=9)],
        [Dependency(1, AFTER_OK, (JobSelection(parent),))],
    )
    match = jobs.pilot.take()
    jobs.pilot.finish(match)
    jobs.grid.advance()
    while jobs.store_part(ids[0]):
        pass
    jobs.grid.advance()
    assert jobs.states(ids[-1]) == [WAITING]


@pytest.mark.parametrize(
    ("dependencies", "fault"),
    [
        ([Dependency(0, AFTER_OK, (JobSelection(99),))], "dependencies[0]: there is no job or cluster 99"),
        ([Dependency(0, AFTER_OK, (JobSelection(1, (7, 7)),))], "dependencies[0]: there is no job or cluster 1.7"),
        ([Dependency(0, AFTER_OK, (JobSelection(1, (0, 7)),))], "dependencies[0]: there is no job or cluster 1.0-7"),
        ([Dependency(0, AFTER_OK, (), (0,))], "wait for each other in a circle: descriptions[0] → descriptions[0]"),
        (
            [Dependency(0, AFTER, (), (1,)), Dependency(1, AFTER_OK, (), (2,)), Dependency(2, AFTER_ANY, (), (0,))],
            "descriptions[0] → descriptions[1] → descriptions[2] → descriptions[0]",
        ),
    ],
)
def test_bad_dependencies_are_refused_with_their_place(
    jobs: DependentJobs, dependencies: list[Dependency], fault: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        jobs.submit(*dependencies, count=3)
    assert fault in str(refused.value)
    assert jobs.rows() == {}


def test_parents_of_other_owners_are_missing_but_not_for_operators(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    wanted = [Dependency(0, AFTER_OK, (JobSelection(parent),))]
    with pytest.raises(InvalidInputError, match=f"there is no job or cluster {parent}"):
        jobs.accept([TRUE], wanted, a_user("bob"))
    (child,) = jobs.accept([TRUE], wanted, an_operator())
    assert jobs.states(child) == [BLOCKED]


def test_failed_parent_outlives_its_retention_while_a_child_waits(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    first = jobs.accept([JobDescription("/bin/true", count=2)], [])[0]
    child, of_cluster = jobs.child(AFTER_OK, parent), jobs.child(AFTER_OK, first)
    matches = jobs.pilot.request_jobs(*[a_slot(f"s{n}") for n in range(3)]).matches
    for match in matches:
        jobs.pilot.finish(match, exit_code=1)
    jobs.grid.advance()
    kept = jobs.grid.state.rules.retention.finished_jobs + timedelta(days=1)
    jobs.grid.clock.advance(kept)
    assert jobs.grid.write(remove_finished) == 0
    jobs.change(JobChange.REMOVE, child, of_cluster)
    jobs.grid.clock.advance(kept)
    removed = jobs.grid.write(remove_finished)
    assert removed + jobs.grid.write(remove_finished) == 5
    assert jobs.rows() == {}


@pytest.mark.parametrize("kind", [AFTER_OK, AFTER_ANY])
def test_parent_that_retention_removes_while_a_child_is_submitted_is_missing(
    jobs: DependentJobs, kind: DependencyKind
) -> None:
    (parent,) = jobs.submit()
    jobs.run(parent)
    jobs.grid.clock.advance(jobs.grid.state.rules.retention.finished_jobs + timedelta(days=1))
    wanted = [Dependency(0, kind, (JobSelection(parent),))]

    def submit(transaction: Transaction, state: Any) -> None:
        found = find_parents(transaction, ALICE, wanted)
        assert remove_finished(transaction, state) == 1
        plan_dependencies(transaction, wanted, found)

    with pytest.raises(InvalidInputError, match=rf"dependencies\[0\]: there is no job or cluster {parent}"):
        jobs.grid.write(submit)


def test_why_shows_the_path_to_the_root_cause(jobs: DependentJobs) -> None:
    root, other, middle, leaf = jobs.submit(
        Dependency(2, AFTER_OK, (), (0,)), Dependency(3, AFTER_OK, (), (1, 2)), count=4
    )
    jobs.run(root, other, exit_code=None)
    assert [each.job.id for each in jobs.grid.why(leaf).blockers] == [other]
    jobs.finish(root, exit_code=5)
    explained = jobs.grid.why(leaf)
    assert [(each.kind, each.job.id, each.job.state) for each in explained.blockers] == [
        (AFTER_OK, middle, BLOCKED),
        (AFTER_OK, root, JobState.FAILED),
    ]
    assert explained.blockers[-1].job.reason == "exit code 5"
    assert explained.summary == (
        "It is blocked until its parents have done what it waits for: waits for 2 of 2 parents."
    )
    jobs.finish(other)
    jobs.change(JobChange.RESCHEDULE, root)
    jobs.change(JobChange.HOLD, root)
    assert [each.job.state for each in jobs.grid.why(leaf).blockers] == [BLOCKED, HELD]


def test_many_children_of_one_parent_are_freed_in_parts(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    children = PART_JOBS + 3
    ids = jobs.accept(
        [TRUE] * children, [Dependency(index, AFTER_OK, (JobSelection(parent),)) for index in range(children)]
    )
    while jobs.store_part(ids[0]):
        pass
    match = jobs.pilot.take()
    jobs.pilot.finish(match)
    assert jobs.grid.write(advance)  # it finds that they are free
    assert jobs.grid.write(advance)
    assert set(jobs.states(*ids)) == {WAITING, BLOCKED}
    jobs.grid.advance()
    assert set(jobs.states(*ids)) == {WAITING}
    assert jobs.rows() == {}


def test_dependencies_on_parents_are_met_in_portions(jobs: DependentJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two parents has three children, which wait for both; four dependencies are met at once."""
    monkeypatch.setattr("pilotage_server.operations.jobs.dependencies.MET_AT_ONCE", 4)
    one, other, *children = jobs.submit(*(Dependency(child, AFTER_OK, (), (0, 1)) for child in (2, 3, 4)), count=5)
    for match in jobs.pilot.request_jobs(a_slot("slot1"), a_slot("slot2")).matches:
        jobs.pilot.finish(match)
    assert jobs.grid.write(advance)
    assert jobs.rows() == {"blocks": 3, "dependency_sources": 1, "dependencies": 2, "parent_events": 2}
    assert jobs.grid.write(advance), "jobs are free, and the rest of the dependencies is met"
    assert jobs.rows() == {"blocks": 2}
    assert jobs.states(one, other, *children) == [DONE, DONE, WAITING, BLOCKED, BLOCKED]
    jobs.grid.advance()
    assert jobs.states(*children) == [WAITING, WAITING, WAITING]
    assert jobs.rows() == {}


def test_parent_that_ends_during_the_submission_frees_its_child(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    jobs = DependentJobs(postgresql_database, clock)
    (parent,) = jobs.submit()
    match = jobs.pilot.take()
    reporter = ThreadPoolExecutor(1)

    def submit(transaction: Transaction) -> tuple[int, Future[Any]]:
        dependencies = [Dependency(0, AFTER_OK, (JobSelection(parent),))]
        groups = single_groups([TRUE])
        (child,) = submit_jobs(transaction, jobs.grid.state, ALICE, groups, dependencies=dependencies).job_ids
        report = reporter.submit(jobs.pilot.finish, match)
        while not postgresql_database.read(has_lock_waiter):
            assert not report.done()
        return child, report

    with reporter:
        child, report = postgresql_database.write(submit)
        report.result(timeout=30)
    assert jobs.states(parent, child) == [DONE, BLOCKED]
    jobs.grid.advance()
    assert jobs.states(child) == [WAITING]


def test_two_servers_free_a_child_of_two_parents_once(database: Database, clock: VirtualClock) -> None:
    jobs = DependentJobs(database, clock)
    parents = jobs.submit(count=20)
    children = [jobs.child(AFTER_OK, one, other) for one, other in pairwise(parents)]
    for match in jobs.pilot.request_jobs(*[a_slot(f"slot{number}") for number in range(len(parents))]).matches:
        jobs.pilot.finish(match)
    other_server = jobs.grid.restarted()
    with ThreadPoolExecutor(2) as servers:
        list(servers.map(Grid.advance, [jobs.grid, other_server]))
    assert set(jobs.states(*children)) == {WAITING}
    assert all(jobs.causes(child) == [JobCause.BLOCKED, JobCause.UNBLOCKED] for child in children)
    assert jobs.rows() == {}


def test_server_that_starts_frees_what_another_has_left(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent)
    jobs.pilot.finish(jobs.pilot.take())
    other = jobs.grid.restarted()
    assert other.read(lambda transaction, _: has_work(transaction.session))
    other.advance()
    assert jobs.states(child) == [WAITING]
    assert not other.read(lambda transaction, _: has_work(transaction.session))


def test_blocked_job_without_meaning_in_a_new_tree_is_held_when_it_is_freed(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent, requirements={"Colour": "red"})
    jobs.grid.put({**a_tree(LONG), "parameters": {"Colour": {"type": "capacity"}}})
    jobs.run(parent)
    assert jobs.states(child) == [HELD]
    assert "its requirements have no meaning in tree version 2" in jobs.seen(child).reason


def test_blocked_job_can_be_edited(jobs: DependentJobs) -> None:
    (parent,) = jobs.submit()
    child = jobs.child(AFTER_OK, parent)
    description = JobDescription("/bin/false", priority=3)
    edited = jobs.grid.write(lambda transaction, state: edit_job(transaction, state, ALICE, child, description)).job
    assert (edited.state, edited.priority) == (BLOCKED, 3)
    jobs.run(parent)
    assert jobs.states(child) == [WAITING]


def test_next_event_of_a_cluster_is_found_by_an_index(database: Database, clock: VirtualClock) -> None:
    jobs = DependentJobs(database, clock)
    first = jobs.accept([JobDescription("/bin/true", count=3)], [])[0]
    jobs.child(AFTER_OK, first)
    explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "

    def plans(transaction: Transaction) -> str:
        if not database.is_sqlite:
            sql.execute(transaction.session, "SET LOCAL enable_seqscan = off")
        ranges = (*_LAST_OPEN.values(), *_LAST_UNDONE.values())
        statements: list[tuple[str, tuple[Any, ...]]] = [(text, (first, first + 2)) for text in ranges]
        statements += [(_OF_WATCHED, ([first],)), (_MET, (10,)), (_NEXT_FREE, ([first], 10))]
        statements.append((_DEPENDANTS, ([first], 10)))
        of_ids = (_EVENTS_OF_CHILDREN, _EVENTS_OF_FUTILE_JOBS, _FUTILE_BLOCKS, _UNSETTLED_BLOCKS)
        statements += [(text, ([first],)) for text in of_ids]
        statements.append((_REPEAT_EVENTS, (first,)))
        rows = [row for text, values in statements for row in sql.rows(transaction.session, explain + text, *values)]
        return "\n".join([*(str(row[-1]) for row in rows), ""])

    shown = database.read(plans)
    assert "Seq Scan" not in shown
    assert "SCAN jobs\n" not in shown
    assert "SCAN children" not in shown
