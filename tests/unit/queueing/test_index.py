"""The index of task queues: it converges to the database and drops what no longer exists."""

from __future__ import annotations

import pytest

from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead

HEAD = QueueHead(0, 1)


def a_task_queue(number: int) -> TaskQueue:
    return TaskQueue(number, Traits(Account("lhcb", "", "alice"), "", JobNeeds()))


def an_index(*counts: int) -> TaskQueueIndex:
    """Return an index of task queues 1, 2, … with these numbers of waiting jobs."""
    index = TaskQueueIndex()
    for number, count in enumerate(counts, 1):
        index.add(a_task_queue(number), count, HEAD if count else None)
    return index


def reserve_from(index: TaskQueueIndex) -> QueueHead:
    """Reserve the first job of task queue 1."""
    jobs = index.get(1)
    assert jobs is not None
    return index.reserve(jobs)


def test_sync_takes_counts_of_database_and_returns_increases() -> None:
    index = an_index(1, 2)
    increases = index.sync(index.snapshot(), map(a_task_queue, (1, 2, 3)), {1: (5, HEAD), 3: (1, HEAD)})
    assert increases == {1: 4, 3: 1}
    assert [index.count(number) for number in (1, 2, 3)] == [5, 0, 1]


def test_sync_drops_task_queue_without_live_jobs() -> None:
    index = an_index(0, 1)
    index.sync(index.snapshot(), [a_task_queue(2)], {2: (1, HEAD)})
    assert set(index.snapshot()) == {2}


def test_sync_keeps_changes_since_its_snapshot() -> None:
    index = an_index(1)
    before = index.snapshot()
    index.add_jobs(1, HEAD)
    index.add(a_task_queue(2), 1, HEAD)
    assert index.sync(before, [a_task_queue(1)], {1: (1, HEAD)}) == {}
    assert (index.count(1), index.count(2)) == (2, 1)


def test_apply_counts_keeps_newer_count() -> None:
    index = an_index(1_000)
    before = index.snapshot()
    index.remove([1])
    index.add(a_task_queue(1), 3, HEAD)
    assert index.apply_counts(before, {1: 5}) == frozenset()
    assert index.count(1) == 3


def test_count_is_stale_when_all_heads_are_fewer() -> None:
    index = an_index(8)
    index.refresh_heads(1, [QueueHead(0, job_id) for job_id in range(1, 6)], is_all=True)
    assert (index.count(1), index.stale_counts) == (5, {1})


def test_count_of_newly_known_task_queue_is_stale() -> None:
    index = an_index()
    index.add_jobs(7, HEAD)
    assert index.sync(index.snapshot(), [a_task_queue(7)], {7: (1, HEAD)}) == {7: 1}
    assert (index.count(7), index.unknown(), index.stale_counts) == (1, frozenset(), {7})


def test_unknown_task_queue_can_be_discarded() -> None:
    index = an_index()
    index.add_jobs(7, HEAD)
    assert index.unknown() == {7}
    index.discard_unknown([7])
    assert index.unknown() == frozenset()


def test_last_job_counts_until_its_match_is_committed() -> None:
    index = an_index(0)
    assert not index.jobs_left(1)
    index.add_jobs(1, QueueHead(0, 1))
    index.refresh_heads(1, [QueueHead(0, 1)], is_all=True)
    jobs = index.get(1)
    assert jobs is not None
    index.confirm(1, [index.reserve(jobs)], [1])
    assert index.jobs_left(1)
    index.commit(1, [1])
    assert not index.jobs_left(1)


def test_count_is_stale_when_zero_with_known_heads() -> None:
    index = an_index(0)
    index.add_jobs(1, QueueHead(0, 1))
    index.refresh_heads(1, [QueueHead(0, number) for number in (1, 2, 3)], is_all=True)
    index.remove_job(1, 9)  # a late report: the database no longer listed job 9
    jobs = index.get(1)
    assert jobs is not None
    index.stale_counts.clear()
    for _ in range(2):
        assert not index.stale_counts
        index.reserve(jobs)
    assert index.stale_counts == {1}
    index.check()


def test_count_is_unsettled_while_a_reservation_is_open() -> None:
    index = an_index(1)
    reserved = reserve_from(index)
    before = index.snapshot()
    assert not index.snapshot()[1].is_settled_since(before[1])
    index.confirm(1, [reserved], [reserved.job_id])
    before = index.snapshot()
    assert index.snapshot()[1].is_settled_since(before[1])
    assert before[1].claimed == {reserved.job_id}


@pytest.mark.parametrize("is_given", [True, False])
def test_count_is_unsettled_until_a_certain_job_is_given_or_returned(*, is_given: bool) -> None:
    index = an_index(2)
    jobs = index.get(1)
    assert jobs is not None
    index.claim(jobs, HEAD)
    index.remove_job(1, HEAD.job_id)  # another server was quicker
    before = index.snapshot()
    assert not index.snapshot()[1].is_settled_since(before[1])
    if is_given:
        index.confirm_certain(1, 1)
    else:
        index.return_certain(1, HEAD.job_id)
        assert index.count(1) == 1
    before = index.snapshot()
    assert index.snapshot()[1].is_settled_since(before[1])


def test_exhausted_task_queue_has_stale_count() -> None:
    index = an_index(1)
    reserved = reserve_from(index)
    index.stale_counts.clear()
    index.exhaust(1, [reserved])
    assert (index.count(1), index.stale_counts) == (0, {1})


def test_job_counted_during_rollback_counts_once_in_the_end() -> None:
    index = an_index(2)
    reserved = reserve_from(index)
    index.confirm(1, [reserved], [reserved.job_id])
    index.stale_counts.clear()
    index.apply_counts(index.snapshot(), {1: 1})
    index.roll_back(1, [reserved.job_id])
    assert (index.count(1), index.stale_counts) == (2, {1})
    index.apply_counts(index.snapshot(), {1: 2})
    assert index.count(1) == 2


def test_unreserved_job_can_still_be_claimed_by_another_match() -> None:
    index = an_index(1)
    reserved = reserve_from(index)
    index.unreserve(1, [reserved])
    index.confirm(1, [reserved], [reserved.job_id])
    assert index.snapshot()[1].claimed == {reserved.job_id}


def test_set_count_keeps_claimed_jobs_and_marks_count_stale() -> None:
    index = an_index(2)
    reserved = reserve_from(index)
    index.stale_counts.clear()
    index.set_count(a_task_queue(1), 2, reserved)
    assert (index.count(1), set(index.snapshot()[1].claimed), index.stale_counts) == (2, {reserved.job_id}, {1})
    assert [waiting.head for waiting in index.waiting()] == [None], "the first job is claimed"
    index.check()
