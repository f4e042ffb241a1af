"""A match in one transaction with work that lets jobs come or go: no job that waits is forgotten."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobDescription
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.matching.work import WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending, queue_recounts
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot, a_slot, request_jobs
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

ONE_SLOT = WorkRequest((a_slot(),))


def matched(transaction: Transaction, state: ServerState, pilot: Pilot) -> list[int]:
    """Ask for one job as part of a transaction."""
    return [match.job_id for match in request_jobs(transaction, state, pilot.identity, ONE_SLOT).matches]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_jobs_that_were_removed_just_before_are_not_counted_twice(
    database: Database, clock: VirtualClock, count: int
) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    first, *others = [job_id for _ in range(count) for job_id in grid.submit()]

    def remove_and_match(transaction: Transaction, state: ServerState) -> list[int]:
        change_jobs(transaction, state, an_operator(), [first], JobChange.REMOVE, "")
        return matched(transaction, state, pilot)

    given = grid.write(remove_and_match)
    others += grid.submit()
    assert given + [job_id for _ in range(count) for job_id in pilot.claim()] == others


def test_a_better_job_that_came_just_before_goes_first_and_the_others_still_wait(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    ids = grid.submit() + grid.submit()

    def submit_and_match(transaction: Transaction, state: ServerState) -> tuple[list[int], list[int]]:
        better = submit_jobs(transaction, state, a_user(), single_groups([JobDescription("/bin/true", priority=5)]))
        return list(better.job_ids), matched(transaction, state, pilot)

    better, given = grid.write(submit_and_match)
    assert given == better
    assert pilot.claim(a_slot("a"), a_slot("b"), a_slot("c")) == ids


def test_a_job_that_waits_where_none_seems_to_wait_is_found(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    (job_id,) = grid.submit()
    grid.state.remove_waiting(grid.job(job_id).task_queue_id, job_id)
    assert pilot.claim() == []
    queue_recounts(grid.state)
    before = grid.state.waiting.snapshot()
    grid.read(lambda transaction, state: count_pending(transaction, state, before))
    assert pilot.claim() == [job_id]


def test_jobs_whose_removal_fails_wait_again_and_who_waits_for_jobs_hears_of_them(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    ids = [job_id for _ in range(3) for job_id in grid.submit()]
    told: list[int] = []
    grid.state.waiting_listeners.append(lambda _, count: told.append(count))

    def remove_and_fail(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), ids[:2], JobChange.REMOVE, "")
        assert matched(transaction, state, pilot) == ids[2:]
        raise LookupError("before the commit")

    with pytest.raises(LookupError):
        grid.write(remove_and_fail)
    assert sum(told) == 2
    assert {job.state for job in grid.jobs(ids).values()} == {JobState.WAITING}
    assert [job_id for _ in range(4) for job_id in pilot.claim()] == ids
