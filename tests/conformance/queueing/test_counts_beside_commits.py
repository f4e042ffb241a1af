"""Counts of waiting jobs beside transactions whose changes are not published yet: no job counts twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event

import pytest

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.queueing.index import CountSnapshot
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.matching.work import WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending, queue_recounts, refresh_state
from pilotage_server.operations.startup.sync import sync_events
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.resources import active_tree_version
from support.grid import LONG, Grid, a_slot, request_jobs
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

Count = Callable[[Grid], None]


def count_requested(grid: Grid) -> None:
    queue_recounts(grid.state)
    before = grid.state.waiting.snapshot()
    grid.read(lambda transaction, state: count_pending(transaction, state, before))


def count_all(grid: Grid) -> None:
    before = grid.state.waiting.snapshot()
    grid.read(lambda transaction, state: refresh_state(transaction, state, before))


counts = pytest.mark.parametrize("count", [count_requested, count_all])


def waiting(grid: Grid) -> int:
    """Return the number of waiting jobs in the demand of the queue."""
    demand = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)]))
    return sum(entry.waiting for entry in demand.demands)


def submit_two(grid: Grid, count: Count) -> None:
    """Submit two jobs, and count when they are committed and not published yet."""

    def submit(transaction: Transaction, state: ServerState) -> None:
        transaction.after_commit(lambda: count(grid))
        submit_jobs(transaction, state, a_user(), single_groups([JobDescription("/bin/true", count=2)]))

    grid.write(submit)


def grid_without_waiting_jobs(database: Database, clock: VirtualClock) -> Grid:
    """Return a grid with one task queue, whose only job is matched."""
    grid = Grid(database, clock, LONG)
    ids = grid.submit()
    assert grid.start_pilot().claim() == ids
    return grid


@counts
def test_committed_unpublished_jobs_count_once(database: Database, clock: VirtualClock, count: Count) -> None:
    grid = grid_without_waiting_jobs(database, clock)
    submit_two(grid, count)
    assert waiting(grid) == 2
    count(grid)
    assert waiting(grid) == 2


@counts
def test_released_unpublished_job_counts_once(database: Database, clock: VirtualClock, count: Count) -> None:
    grid = grid_without_waiting_jobs(database, clock)
    (job_id,) = grid.submit(hold=True)

    def release(transaction: Transaction, state: ServerState) -> None:
        transaction.after_commit(lambda: count(grid))
        change_jobs(transaction, state, an_operator(), [job_id], JobChange.RELEASE, "")

    grid.write(release)
    assert waiting(grid) == 1


@counts
def test_job_of_uncommitted_match_does_not_count(database: Database, clock: VirtualClock, count: Count) -> None:
    grid = Grid(database, clock, LONG)
    pilot, (job_id,) = grid.start_pilot(), grid.submit()

    def match(transaction: Transaction, state: ServerState) -> list[int]:
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest((a_slot(),)))
        count(grid)
        return [match.job_id for match in answer.matches]

    assert grid.write(match) == [job_id]
    assert waiting(grid) == 0


@counts
def test_job_removed_in_open_transaction_does_not_count(database: Database, clock: VirtualClock, count: Count) -> None:
    grid = Grid(database, clock, LONG)
    (job_id,) = grid.submit()

    def remove(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), [job_id], JobChange.REMOVE, "")
        count(grid)

    grid.write(remove)
    assert waiting(grid) == 0


@counts
def test_failed_transaction_does_not_block_recount(database: Database, clock: VirtualClock, count: Count) -> None:
    grid = grid_without_waiting_jobs(database, clock)
    (job_id,) = grid.submit()
    task_queue_id = grid.job(job_id).task_queue_id

    def remove_and_fail(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), [job_id], JobChange.REMOVE, "")
        submit_jobs(transaction, state, a_user(), single_groups([JobDescription("/bin/true")]))
        raise LookupError("before the commit")

    with pytest.raises(LookupError):
        grid.write(remove_and_fail)
    grid.state.remove_waiting(task_queue_id, job_id)
    count(grid)
    assert waiting(grid) == 1


def test_job_removed_during_count_does_not_count(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG)
    (job_id,) = grid.submit()
    before: dict[int, CountSnapshot] = {}
    has_snapshot, is_removed = Event(), Event()

    def count(transaction: Transaction) -> None:
        active_tree_version(transaction.session)  # fixes the snapshot of the transaction
        has_snapshot.set()
        assert is_removed.wait(timeout=30)
        count_pending(transaction, grid.state, before)

    def remove(transaction: Transaction, state: ServerState) -> Future[None]:
        change_jobs(transaction, state, an_operator(), [job_id], JobChange.REMOVE, "")
        queue_recounts(state)
        before.update(state.waiting.snapshot())
        counting = database.submit_read(count)
        assert has_snapshot.wait(timeout=30)
        return counting

    counting = grid.write(remove)
    is_removed.set()
    counting.result(timeout=30)
    assert waiting(grid) == 0


def test_jobs_of_unpublished_new_task_queue_count_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG)
    submit_two(grid, count_all)
    assert waiting(grid) == 2


def test_match_with_fewer_jobs_than_counted_does_not_block_recount(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    grid = Grid(postgresql_database, clock, LONG)
    first, second = [job_id for _ in range(2) for job_id in grid.submit()]
    other = grid.restarted()
    assert other.start_pilot().claim() == [first]
    assert grid.start_pilot().claim(a_slot("a"), a_slot("b")) == [second]
    grid.read(sync_events)
    grid.state.remove_waiting(grid.job(first).task_queue_id, 0)  # one too few, as after a missed event
    (last,) = grid.submit()
    count_all(grid)
    assert waiting(grid) == 1
    assert grid.start_pilot().claim() == [last]
    assert not grid.state.waiting.jobs_left(grid.job(last).task_queue_id), "no change is pending"


@pytest.mark.parametrize("own_jobs", [1, 2])
def test_jobs_matched_before_their_sync_count_once(
    postgresql_database: Database, clock: VirtualClock, own_jobs: int
) -> None:
    server = Grid(postgresql_database, clock, LONG)
    first, *_ = server.submit(count=own_jobs)
    other = server.restarted()
    other.submit(count=3)
    server.state.waiting.refresh_heads(server.job(first).task_queue_id, (), is_all=False)
    assert server.start_pilot().claim() == [first]
    server.read(sync_events)
    count_requested(server)
    assert waiting(server) == own_jobs - 1 + 3


def test_jobs_of_task_queue_of_another_server_count_once(postgresql_database: Database, clock: VirtualClock) -> None:
    server = Grid(postgresql_database, clock, LONG)
    other = server.restarted()
    other.submit(count=2)
    server.read(sync_events)
    other.submit(count=3)
    assert len(server.start_pilot().claim()) == 1
    server.read(sync_events)
    before = server.state.waiting.snapshot()
    server.read(lambda transaction, state: count_pending(transaction, state, before))
    assert waiting(server) == 4


def test_jobs_of_transaction_that_loads_heads_count_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG)
    pilot, ids = grid.start_pilot(), grid.submit(count=2)
    grid.state.waiting.refresh_heads(grid.job(ids[0]).task_queue_id, (), is_all=False)

    def submit_and_match(transaction: Transaction, state: ServerState) -> list[int]:
        submit_jobs(transaction, state, a_user(), single_groups([JobDescription("/bin/true", count=3)]))
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest((a_slot(),)))
        return [match.job_id for match in answer.matches]

    assert grid.write(submit_and_match) == ids[:1]
    assert waiting(grid) == 4
