"""What a server takes into memory at its start, however many jobs wait, and what it counts later."""

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


def told(state: ServerState, task_queue_id: int) -> int:
    """Return how many jobs of a task queue wait by what those are told who ask."""
    return next(each.count for each in state.waiting.waiting() if each.task_queue.id == task_queue_id)


def test_few_jobs_are_counted_at_once_and_many_count_as_many(bench: PoolBench) -> None:
    few, many = bench.submit(count=3, Memory=1000), bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database).state
    assert started.waiting.count(few.task_queue_id) == told(started, few.task_queue_id) == 3
    assert started.waiting.count(many.task_queue_id) > ASSUMED
    assert told(started, many.task_queue_id) == 1000, "so many were counted"
    assert started.pending_counts == {many.task_queue_id}


def test_what_was_not_counted_at_the_start_is_counted_later(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    before = started.state.waiting.snapshot()
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert started.state.waiting.count(many.task_queue_id) == MANY
    assert started.state.pending_counts == set()


def test_a_task_queue_that_is_busy_is_counted_another_time(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    before = started.state.waiting.snapshot()
    started.remove(many)
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert told(started.state, many.task_queue_id) == 999
    before = started.state.waiting.snapshot()
    started.read(lambda transaction, state: count_pending(transaction, state, before))
    assert started.state.waiting.count(many.task_queue_id) == told(started.state, many.task_queue_id) == MANY - 1


def test_jobs_that_come_while_others_are_counted_are_counted_too(bench: PoolBench) -> None:
    many = bench.submit(count=MANY, Memory=2000)
    started = PoolBench(bench.database)
    waiting = started.state.waiting
    before = waiting.snapshot()
    started.submit(count=5, Memory=2000)
    waiting.apply_counts(before, {many.task_queue_id: MANY})
    assert waiting.count(many.task_queue_id) == MANY + 5
