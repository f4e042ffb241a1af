"""Counts of waiting jobs at a server's start: small task queues at once, large ones later."""

from __future__ import annotations

import pytest

from pilotage_server.operations.queueing.counting import ASSUMED
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending
from pilotage_server.storage.database.engine import Database
from support.pool_bench import PoolBench, three_queues

MANY = 1200


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def shown_count(state: ServerState, task_queue_id: int) -> int:
    """Return the shown number of waiting jobs of a task queue."""
    return next(jobs.count for jobs in state.waiting.waiting() if jobs.task_queue.id == task_queue_id)


def test_start_counts_few_jobs_and_assumes_many(bench: PoolBench) -> None:
    few, many = bench.submit(count=3, Memory=1000), bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database).state
    assert started.waiting.count(few.task_queue_id) == shown_count(started, few.task_queue_id) == 3
    assert started.waiting.count(many.task_queue_id) > ASSUMED
    assert shown_count(started, many.task_queue_id) == 1000, "the number that was counted"
    assert started.pending_counts == {many.task_queue_id}


def test_large_task_queue_is_counted_after_start(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    before = started.state.waiting.snapshot()
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert started.state.waiting.count(many.task_queue_id) == MANY
    assert started.state.pending_counts == set()


def test_changing_task_queue_is_counted_again(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    before = started.state.waiting.snapshot()
    started.remove(many)
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert shown_count(started.state, many.task_queue_id) == 999
    before = started.state.waiting.snapshot()
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert started.state.waiting.count(many.task_queue_id) == shown_count(started.state, many.task_queue_id) == MANY - 1


def test_jobs_submitted_during_count_are_added(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    waiting = started.state.waiting
    before = waiting.snapshot()
    started.submit(count=5, Memory=2000)
    waiting.apply_counts(before, {many.task_queue_id: MANY})
    assert waiting.count(many.task_queue_id) == MANY + 5
