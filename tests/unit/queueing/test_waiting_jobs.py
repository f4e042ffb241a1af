"""The first jobs of a task queue as memory knows them, while jobs come and go and matches are under way."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account
from pilotage_server.core.queueing.account_order import AccountOrder
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingJobs

TASK_QUEUE = TaskQueue(1, Traits(Account("lhcb", "", "alice"), "", JobNeeds()))


def a_line(*job_ids: int) -> WaitingJobs:
    """Return a line in which these jobs wait, one after the other."""
    line = WaitingJobs(TASK_QUEUE, 0, AccountOrder())
    for job_id in job_ids:
        line.add(QueueHead(0, job_id), 1)
    return line


def ids(line: WaitingJobs) -> list[int]:
    return [head.job_id for head in line.heads]


def test_of_an_array_only_the_first_is_known() -> None:
    line = a_line()
    line.add(QueueHead(0, 5), 100)
    assert (line.count, ids(line)) == (100, [5])
    line.reserve()
    assert line.is_headless
    assert line.current_position() == (0, 5, 1, 0), "nobody goes before who has just gone"


def test_who_goes_before_all_is_known_though_the_others_are_not() -> None:
    line = a_line()
    line.add(QueueHead(0, 5), 100)
    line.reserve()
    line.add(QueueHead(0, 200), 1)
    assert line.is_headless
    line.add(QueueHead(1, 201), 1)
    assert ids(line) == [201]


def test_what_was_taken_does_not_come_back_with_what_the_database_says() -> None:
    line = a_line(1, 2)
    line.reserve()
    line.refresh_heads([QueueHead(0, 1), QueueHead(0, 2), QueueHead(0, 3)], is_all=True)
    assert (line.count, ids(line)) == (2, [2, 3])
    line.set_head(QueueHead(0, 1))
    assert ids(line) == [2, 3]


def test_what_is_put_back_waits_again_and_who_is_first_has_to_be_asked() -> None:
    line = a_line(1, 2, 3)
    taken = [line.reserve(), line.reserve()]
    line.unreserve(taken)
    assert (line.count, ids(line), line.claimed) == (3, [], set())
    assert line.current_position() == (0, 1, 1, 0)


def test_whom_the_database_passed_over_was_not_there_any_more() -> None:
    line = a_line(1, 2, 3, 4, 5)
    taken = line.reserve()
    line.confirm([taken], [4])
    assert (ids(line), line.claimed) == ([5], {4})
    line.commit([4])
    for job_id in (1, 2, 3):
        line.remove(job_id)
    assert (line.count, ids(line), line.claimed) == (1, [5], set())


def test_who_was_taken_and_not_claimed_waits_on() -> None:
    line = a_line(2, 3)
    taken = line.reserve()
    line.confirm([taken], [1])
    line.refresh_heads([QueueHead(0, 2), QueueHead(0, 3)], is_all=True)
    assert (line.count, ids(line)) == (2, [2, 3])


def test_matches_under_way_may_get_one_another_s_jobs() -> None:
    line = a_line(1, 2, 3)
    one, other = line.reserve(), line.reserve()
    line.confirm([other], [1])
    line.confirm([one], [2])
    assert line.claimed == {1, 2}
    line.commit([1])
    line.commit([2])
    assert (line.count, ids(line), line.claimed) == (1, [3], set())


def test_when_the_database_has_nothing_nobody_waits() -> None:
    line = a_line(1, 2, 3)
    line.exhaust([line.reserve()])
    assert (line.count, ids(line), line.claimed) == (0, [], set())


def test_a_job_of_which_is_told_late_that_it_came_is_not_taken_for_one_that_waits() -> None:
    line = a_line()
    line.remove(1)
    line.add(QueueHead(0, 1), 1)
    assert (line.count, ids(line)) == (0, [])
    line.add(QueueHead(0, 2), 1)
    assert line.count == 1


def test_heads_are_kept_of_the_task_queues_that_were_asked_for_last() -> None:
    index = TaskQueueIndex(most_heads=20)
    for number in (1, 2, 3):
        index.add(TaskQueue(number, TASK_QUEUE.traits), 50)
        index.refresh_heads(number, [QueueHead(0, 100 * number + place) for place in range(10)], is_all=False)
        index.check()
    known = {number: len(line.heads) for number in (1, 2, 3) if (line := index.get(number)) is not None}
    assert known == {1: 1, 2: 10, 3: 10}


def test_a_job_that_was_taken_before_it_was_told_is_not_known_once_more() -> None:
    line = a_line(1, 2)
    line.refresh_heads([QueueHead(1, 3), QueueHead(0, 1), QueueHead(0, 2)], is_all=True, is_settled=False)
    assert line.count == 2
    assert line.reserve() == QueueHead(1, 3)
    line.add(QueueHead(1, 3), 1)
    assert (line.count, ids(line)) == (2, [1, 2])


def test_a_miss_beside_a_claim_of_the_same_job_leaves_nobody_under_way() -> None:
    line = a_line(1, 2)
    gone, other = line.reserve(), line.reserve()
    line.exhaust([other])
    line.confirm([gone], [2])
    line.commit([2])
    assert line.claimed == set()


class OneServer(RuleBasedStateMachine):
    """A line beside what the database has, without other servers: what is known is true.

    `waiting` is what the database has but for what is `taken`; the arrays `untold` are among it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = a_line()
        self.waiting: list[QueueHead] = []
        self.taken: list[QueueHead] = []
        self.untold: list[list[QueueHead]] = []
        self.last = 0

    @rule(priority=st.integers(-1, 1), count=st.integers(1, 3))
    def commit(self, priority: int, count: int) -> None:
        self.untold.append(self._new(priority, count))

    @precondition(lambda self: self.untold)
    @rule()
    def tell(self) -> None:
        heads = self.untold.pop(0)
        self.line.add(heads[0], len(heads))

    @rule(priority=st.integers(-1, 1), count=st.integers(1, 3))
    def come(self, priority: int, count: int) -> None:
        heads = self._new(priority, count)
        self.line.add(heads[0], count)

    def _new(self, priority: int, count: int) -> list[QueueHead]:
        heads = [QueueHead(priority, self.last + number) for number in range(1, count + 1)]
        self.last += count
        self.waiting = sorted((*self.waiting, *heads), key=lambda head: head.order)
        return heads

    @precondition(lambda self: self._told())
    @rule(place=st.integers(0, 9))
    def go(self, place: int) -> None:
        told = self._told()
        head = told[place % len(told)]
        self.waiting.remove(head)
        self.line.remove(head.job_id)

    @precondition(lambda self: self.line.heads and self.line.count > 0)
    @rule()
    def take(self) -> None:
        self.taken.append(self.line.reserve())
        assert self.taken[-1] == next(head for head in self.waiting if head in [self.taken[-1], *self._told()])
        self.waiting.remove(self.taken[-1])

    @precondition(lambda self: self.taken)
    @rule(count=st.integers(1, 3))
    def bind(self, count: int) -> None:
        mine = [head for head in self.taken if self._is_told(head)][:count]
        self.taken = [head for head in self.taken if head not in mine]
        self.line.confirm(mine, [head.job_id for head in mine])
        self.line.commit([head.job_id for head in mine])

    @precondition(lambda self: len(self.taken) == 1 and self.waiting and not self.untold)
    @rule(place=st.integers(0, 9), is_told_first=st.booleans())
    def bind_to_another(self, place: int, is_told_first: bool) -> None:
        """Let the one that was taken go, and some that follow, so that the database gives the next."""
        place %= len(self.waiting)
        gone, given = [self.taken.pop(), *self.waiting[:place]], self.waiting[place]
        self.waiting = self.waiting[place + 1 :]
        if not is_told_first:
            self.line.confirm(gone[:1], [given.job_id])
        for head in gone:
            self.line.remove(head.job_id)
        if is_told_first:
            self.line.confirm(gone[:1], [given.job_id])
        self.line.commit([given.job_id])

    @precondition(lambda self: self.taken)
    @rule(count=st.integers(1, 3))
    def put_back(self, count: int) -> None:
        mine, self.taken = self.taken[:count], self.taken[count:]
        self.line.unreserve(mine)
        self.waiting = sorted((*self.waiting, *mine), key=lambda head: head.order)

    @rule(most=st.integers(1, 4))
    def learn(self, most: int) -> None:
        asked = most + len(self.taken)
        there = sorted((*self.waiting, *self.taken), key=lambda head: head.order)[:asked]
        self.line.refresh_heads(there, is_all=len(there) < asked, is_settled=not self.untold)

    @rule()
    def confirm(self) -> None:
        self.line.set_head(self.waiting[0] if self.waiting else None, is_settled=not self.untold)

    @invariant()
    def what_is_known_is_true(self) -> None:
        told, heads = self._told(), self.line.heads
        assert self.line.count == len(self.waiting) - sum(map(len, self.untold))
        assert heads == [head for head in self.waiting if head in heads]
        assert not heads or {head for head in told if head.order < heads[-1].order} <= set(heads)
        assert self.line.claimed == {head.job_id for head in self.taken}
        if self.line.count > 0:
            turn = self.line.current_position()
            assert turn is not None
            assert not told or turn[:2] <= told[0].order

    def _told(self) -> list[QueueHead]:
        """Return what waits and was told, in order."""
        return [head for head in self.waiting if self._is_told(head)]

    def _is_told(self, head: QueueHead) -> bool:
        return not any(head in array for array in self.untold)


TestOneServer = OneServer.TestCase
