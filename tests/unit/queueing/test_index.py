"""The picture of what waits: it agrees with the database again, and forgets what is gone."""

from __future__ import annotations

from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead

HEAD = QueueHead(0, 1)


def a_task_queue(number: int) -> TaskQueue:
    return TaskQueue(number, Traits(Account("lhcb", "", "alice"), "", JobNeeds()))


def an_index(*counts: int) -> TaskQueueIndex:
    """Return an index of task queues 1, 2, … in which so many jobs wait."""
    index = TaskQueueIndex()
    for number, count in enumerate(counts, 1):
        index.add(a_task_queue(number), count, HEAD if count else None)
    return index


def taken_from(index: TaskQueueIndex) -> QueueHead:
    """Return the first job of task queue 1, which a match has just taken."""
    line = index.get(1)
    assert line is not None
    return index.reserve(line)


def test_what_the_database_says_counts_and_who_waits_hears_of_more() -> None:
    index = an_index(1, 2)
    more = index.sync(index.snapshot(), map(a_task_queue, (1, 2, 3)), {1: (5, HEAD), 3: (1, HEAD)})
    assert more == {1: 4, 3: 1}
    assert [index.count(number) for number in (1, 2, 3)] == [5, 0, 1]


def test_a_task_queue_without_live_jobs_is_forgotten() -> None:
    index = an_index(0, 1)
    index.sync(index.snapshot(), [a_task_queue(2)], {2: (1, HEAD)})
    assert set(index.snapshot()) == {2}


def test_what_was_told_since_the_database_was_asked_stays() -> None:
    index = an_index(1)
    before = index.snapshot()
    index.add_jobs(1, HEAD)
    index.add(a_task_queue(2), 1, HEAD)
    assert index.sync(before, [a_task_queue(1)], {1: (1, HEAD)}) == {}
    assert (index.count(1), index.count(2)) == (2, 1)


def test_what_was_counted_anew_meanwhile_stays() -> None:
    index = an_index(1_000)
    before = index.snapshot()
    index.remove([1])
    index.add(a_task_queue(1), 3, HEAD)
    assert index.apply_counts(before, {1: 5}) == frozenset()
    assert index.count(1) == 3


def test_a_task_queue_of_which_more_was_told_than_the_database_gave_is_doubted() -> None:
    index = an_index(8)
    index.refresh_heads(1, [QueueHead(0, job_id) for job_id in range(1, 6)], is_all=True)
    assert (index.count(1), index.stale_counts) == (5, {1})


def test_a_task_queue_that_has_only_been_heard_of_is_doubted_once_it_is_known() -> None:
    index = an_index()
    index.add_jobs(7, HEAD)
    assert index.sync(index.snapshot(), [a_task_queue(7)], {7: (1, HEAD)}) == {7: 1}
    assert (index.count(7), index.unknown(), index.stale_counts) == (1, frozenset(), {7})


def test_an_unknown_task_queue_that_the_database_does_not_have_is_asked_for_once() -> None:
    index = an_index()
    index.add_jobs(7, HEAD)
    assert index.unknown() == {7}
    index.discard_unknown([7])
    assert index.unknown() == frozenset()


def test_jobs_are_there_until_the_match_that_has_taken_the_last_of_them_is_at_its_end() -> None:
    index = an_index(0)
    assert not index.has_jobs(1)
    index.add_jobs(1, QueueHead(0, 1))
    index.refresh_heads(1, [QueueHead(0, 1)], is_all=True)
    line = index.get(1)
    assert line is not None
    index.reserve(line)
    assert index.has_jobs(1)
    index.commit(1, [1])
    assert not index.has_jobs(1)


def test_a_task_queue_is_doubted_that_seems_empty_while_its_first_jobs_are_known() -> None:
    index = an_index(0)
    index.add_jobs(1, QueueHead(0, 1))
    index.refresh_heads(1, [QueueHead(0, number) for number in (1, 2, 3)], is_all=True)
    index.remove_job(1, 9)  # told late: the database had left it out already
    line = index.get(1)
    assert line is not None
    index.stale_counts.clear()
    for _ in range(2):
        assert not index.stale_counts
        index.reserve(line)
    assert index.stale_counts == {1}
    index.check()


def test_a_line_is_not_counted_while_a_match_has_no_answer() -> None:
    index = an_index(1)
    taken = taken_from(index)
    before = index.snapshot()
    assert not index.snapshot()[1].is_settled_since(before[1])
    index.confirm(1, [taken], [taken.job_id])
    before = index.snapshot()
    assert index.snapshot()[1].is_settled_since(before[1])
    assert before[1].claimed == {taken.job_id}


def test_each_miss_lets_its_task_queue_be_counted() -> None:
    index = an_index(1)
    taken = taken_from(index)
    index.stale_counts.clear()
    index.exhaust(1, [taken])
    assert (index.count(1), index.stale_counts) == (0, {1})


def test_a_job_that_is_counted_while_its_match_is_being_undone_counts_once_in_the_end() -> None:
    index = an_index(2)
    taken = taken_from(index)
    index.confirm(1, [taken], [taken.job_id])
    index.commit(1, [taken.job_id])
    index.stale_counts.clear()
    index.apply_counts(index.snapshot(), {1: 2})
    index.unreserve(1, [taken])
    assert index.stale_counts == {1}
    index.apply_counts(index.snapshot(), {1: 2})
    assert index.count(1) == 2


def test_a_job_that_another_puts_back_is_under_way_all_the_same_for_who_got_it() -> None:
    index = an_index(1)
    taken = taken_from(index)
    index.unreserve(1, [taken])
    index.confirm(1, [taken], [taken.job_id])
    assert index.snapshot()[1].claimed == {taken.job_id}


def test_a_task_queue_that_is_counted_anew_keeps_who_is_under_way_and_is_doubted() -> None:
    index = an_index(2)
    taken = taken_from(index)
    index.stale_counts.clear()
    index.set_count(a_task_queue(1), 2, taken)
    assert (index.count(1), set(index.snapshot()[1].claimed), index.stale_counts) == (2, {taken.job_id}, {1})
    assert index.headless() == {1}, "the first one is under way"
    index.check()
