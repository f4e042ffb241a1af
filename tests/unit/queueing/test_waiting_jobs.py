"""The waiting jobs of a task queue in memory, while jobs are added and removed and matches are open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account
from pilotage_server.core.queueing.account_order import AccountOrder
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingJobs

TASK_QUEUE = TaskQueue(1, Traits(Account("lhcb", "", "alice"), "", JobNeeds()))


def waiting_jobs(*job_ids: int) -> WaitingJobs:
    """Return the waiting jobs of a task queue, in this order."""
    jobs = WaitingJobs(TASK_QUEUE, 0, AccountOrder())
    for job_id in job_ids:
        jobs.add(QueueHead(0, job_id), 1)
    return jobs


def ids(jobs: WaitingJobs) -> list[int]:
    return [head.job_id for head in jobs.heads]


def test_only_first_job_of_an_array_is_known() -> None:
    jobs = waiting_jobs()
    jobs.add(QueueHead(0, 5), 100)
    assert (jobs.count, ids(jobs)) == (100, [5])
    jobs.reserve()
    assert jobs.is_headless
    assert jobs.current_position() == (0, 5, 1, 0), "no waiting job precedes the reserved one"


def test_job_before_all_others_becomes_head_of_headless_queue() -> None:
    jobs = waiting_jobs()
    jobs.add(QueueHead(0, 5), 100)
    jobs.reserve()
    jobs.add(QueueHead(0, 200), 1)
    assert jobs.is_headless
    jobs.add(QueueHead(1, 201), 1)
    assert ids(jobs) == [201]


def test_reserved_job_does_not_return_with_refreshed_heads() -> None:
    jobs = waiting_jobs(1, 2)
    jobs.reserve()
    jobs.refresh_heads([QueueHead(0, 1), QueueHead(0, 2), QueueHead(0, 3)], is_all=True)
    assert (jobs.count, ids(jobs)) == (2, [2, 3])
    jobs.set_head(QueueHead(0, 1))
    assert ids(jobs) == [2, 3]


def test_unreserved_jobs_wait_again_and_heads_are_unknown() -> None:
    jobs = waiting_jobs(1, 2, 3)
    reserved = [jobs.reserve(), jobs.reserve()]
    jobs.unreserve(reserved)
    assert (jobs.count, ids(jobs), jobs.taken) == (3, [], set())
    assert jobs.current_position() == (0, 1, 1, 0)


def test_jobs_that_the_database_passed_over_are_gone() -> None:
    jobs = waiting_jobs(1, 2, 3, 4, 5)
    reserved = jobs.reserve()
    jobs.confirm([reserved], [4])
    assert (ids(jobs), jobs.taken) == ([5], {4})
    jobs.commit([4])
    for job_id in (1, 2, 3):
        jobs.remove(job_id)
    assert (jobs.count, ids(jobs), jobs.taken) == (1, [5], set())


def test_reserved_job_that_was_not_claimed_still_waits() -> None:
    jobs = waiting_jobs(2, 3)
    reserved = jobs.reserve()
    jobs.confirm([reserved], [1])
    jobs.refresh_heads([QueueHead(0, 2), QueueHead(0, 3)], is_all=True)
    assert (jobs.count, ids(jobs)) == (2, [2, 3])


def test_concurrent_matches_may_swap_jobs() -> None:
    jobs = waiting_jobs(1, 2, 3)
    first, second = jobs.reserve(), jobs.reserve()
    jobs.confirm([second], [1])
    jobs.confirm([first], [2])
    assert jobs.taken == {1, 2}
    jobs.commit([1])
    jobs.commit([2])
    assert (jobs.count, ids(jobs), jobs.taken) == (1, [3], set())


def test_exhausted_task_queue_is_empty() -> None:
    jobs = waiting_jobs(1, 2, 3)
    jobs.exhaust([jobs.reserve()])
    assert (jobs.count, ids(jobs), jobs.taken) == (0, [], set())


def test_removal_before_late_addition_wins() -> None:
    jobs = waiting_jobs()
    jobs.remove(1)
    jobs.add(QueueHead(0, 1), 1)
    assert (jobs.count, ids(jobs)) == (0, [])
    jobs.add(QueueHead(0, 2), 1)
    assert jobs.count == 1


def test_head_cache_keeps_most_recently_refreshed_task_queues() -> None:
    index = TaskQueueIndex(most_heads=20)
    for number in (1, 2, 3):
        index.add(TaskQueue(number, TASK_QUEUE.traits), 50)
        index.refresh_heads(number, [QueueHead(0, 100 * number + offset) for offset in range(10)], is_all=False)
        index.check()
    known = {number: len(jobs.heads) for number in (1, 2, 3) if (jobs := index.get(number)) is not None}
    assert known == {1: 1, 2: 10, 3: 10}


def test_job_reserved_before_its_addition_is_not_added_again() -> None:
    jobs = waiting_jobs(1, 2)
    jobs.refresh_heads([QueueHead(1, 3), QueueHead(0, 1), QueueHead(0, 2)], is_all=True, is_settled=False)
    assert jobs.count == 2
    assert jobs.reserve() == QueueHead(1, 3)
    jobs.add(QueueHead(1, 3), 1)
    assert (jobs.count, ids(jobs)) == (2, [1, 2])


def test_miss_during_claim_of_same_job_leaves_no_claim() -> None:
    jobs = waiting_jobs(1, 2)
    first, second = jobs.reserve(), jobs.reserve()
    jobs.exhaust([second])
    jobs.confirm([first], [2])
    jobs.commit([2])
    assert jobs.taken == set()


def test_certain_job_that_another_match_has_got_keeps_no_other_job() -> None:
    jobs = waiting_jobs(1, 2)
    certain = jobs.heads[0]
    jobs.claim(certain)
    jobs.confirm([jobs.reserve()], [1])
    jobs.return_certain(certain.job_id)
    jobs.refresh_heads([QueueHead(0, 1), QueueHead(0, 2)], is_all=True)
    assert (jobs.count, ids(jobs), jobs.taken) == (1, [2], {1})
    jobs.commit([1])
    assert jobs.taken == set()


def test_job_returned_by_a_rollback_that_is_applied_later_stays_claimed() -> None:
    jobs = waiting_jobs(1, 2)
    first, second = jobs.reserve(), jobs.reserve()
    jobs.confirm([first], [1])
    jobs.confirm([second], [1])
    jobs.roll_back([1])
    jobs.refresh_heads([QueueHead(0, 1), QueueHead(0, 2)], is_all=True)
    assert (jobs.count, ids(jobs), jobs.taken) == (1, [2], {1})


def test_confirmed_job_of_a_match_that_gets_another_stays_claimed() -> None:
    jobs = waiting_jobs(1, 2, 3)
    first, second = jobs.reserve(), jobs.reserve()
    jobs.confirm([second], [1])
    jobs.confirm([first], [3])
    assert jobs.taken == {1, 3}, "job 2 is gone, or another server has it"


class SingleServer(RuleBasedStateMachine):
    """`WaitingJobs` against a model of the database, without other servers: the known state is always true.

    `waiting` are the jobs of the database that are not `reserved`. They include the arrays in `unpublished`, which
    are committed and not yet added to memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs = waiting_jobs()
        self.waiting: list[QueueHead] = []
        self.reserved: list[QueueHead] = []
        self.unpublished: list[list[QueueHead]] = []
        self.last = 0

    @rule(priority=st.integers(-1, 1), count=st.integers(1, 3))
    def commit(self, priority: int, count: int) -> None:
        self.unpublished.append(self._new(priority, count))

    @precondition(lambda self: self.unpublished)
    @rule()
    def publish(self) -> None:
        heads = self.unpublished.pop(0)
        self.jobs.add(heads[0], len(heads))

    @rule(priority=st.integers(-1, 1), count=st.integers(1, 3))
    def add(self, priority: int, count: int) -> None:
        heads = self._new(priority, count)
        self.jobs.add(heads[0], count)

    def _new(self, priority: int, count: int) -> list[QueueHead]:
        heads = [QueueHead(priority, self.last + number) for number in range(1, count + 1)]
        self.last += count
        self.waiting = sorted((*self.waiting, *heads), key=lambda head: head.order)
        return heads

    @precondition(lambda self: self._published())
    @rule(index=st.integers(0, 9))
    def remove(self, index: int) -> None:
        published = self._published()
        head = published[index % len(published)]
        self.waiting.remove(head)
        self.jobs.remove(head.job_id)

    @precondition(lambda self: self.jobs.heads and self.jobs.count > 0)
    @rule()
    def reserve(self) -> None:
        self.reserved.append(self.jobs.reserve())
        assert self.reserved[-1] == next(
            head for head in self.waiting if head in [self.reserved[-1], *self._published()]
        )
        self.waiting.remove(self.reserved[-1])

    @precondition(lambda self: self.reserved)
    @rule(count=st.integers(1, 3))
    def confirm_own(self, count: int) -> None:
        own = [head for head in self.reserved if self._is_published(head)][:count]
        self.reserved = [head for head in self.reserved if head not in own]
        self.jobs.confirm(own, [head.job_id for head in own])
        self.jobs.commit([head.job_id for head in own])

    @precondition(lambda self: len(self.reserved) == 1 and self.waiting and not self.unpublished)
    @rule(index=st.integers(0, 9), is_removed_first=st.booleans())
    def confirm_another(self, index: int, is_removed_first: bool) -> None:
        """Remove the reserved job and some that follow it, so that the database claims the next one."""
        index %= len(self.waiting)
        removed, claimed = [self.reserved.pop(), *self.waiting[:index]], self.waiting[index]
        self.waiting = self.waiting[index + 1 :]
        if not is_removed_first:
            self.jobs.confirm(removed[:1], [claimed.job_id])
        for head in removed:
            self.jobs.remove(head.job_id)
        if is_removed_first:
            self.jobs.confirm(removed[:1], [claimed.job_id])
        self.jobs.commit([claimed.job_id])

    @precondition(lambda self: self.reserved)
    @rule(count=st.integers(1, 3))
    def unreserve(self, count: int) -> None:
        own, self.reserved = self.reserved[:count], self.reserved[count:]
        self.jobs.unreserve(own)
        self.waiting = sorted((*self.waiting, *own), key=lambda head: head.order)

    @rule(limit=st.integers(1, 4))
    def refresh_heads(self, limit: int) -> None:
        limit += len(self.reserved)
        stored = sorted((*self.waiting, *self.reserved), key=lambda head: head.order)[:limit]
        self.jobs.refresh_heads(stored, is_all=len(stored) < limit, is_settled=not self.unpublished)

    @precondition(lambda self: not self.unpublished)
    @rule()
    def set_head(self) -> None:
        self.jobs.set_head(self.waiting[0] if self.waiting else None)

    @invariant()
    def known_state_is_true(self) -> None:
        published, heads = self._published(), self.jobs.heads
        assert self.jobs.count == len(self.waiting) - sum(map(len, self.unpublished))
        assert heads == [head for head in self.waiting if head in heads]
        assert not heads or {head for head in published if head.order < heads[-1].order} <= set(heads)
        assert self.jobs.taken == {head.job_id for head in self.reserved}
        if self.jobs.count > 0:
            position = self.jobs.current_position()
            assert position is not None
            assert not published or position[:2] <= published[0].order

    def _published(self) -> list[QueueHead]:
        """Return the waiting jobs that are published, in order."""
        return [head for head in self.waiting if self._is_published(head)]

    def _is_published(self, head: QueueHead) -> bool:
        return not any(head in array for array in self.unpublished)


TestSingleServer = SingleServer.TestCase


@dataclass
class Writer:
    """A transaction that matches: what it has taken in memory, what the database has given, and how it has ended."""

    firsts: list[QueueHead]
    certain: list[int]
    is_answered: bool = False
    is_applied: bool = False
    firsts_given: list[int] = field(default_factory=list)
    certain_given: list[int] = field(default_factory=list)
    is_committed: bool | None = None


class SeveralWriters(RuleBasedStateMachine):
    """Transactions of several threads take first and certain jobs; memory follows the database in any order.

    `stored` are the waiting jobs of the database, `locks` those that a transaction has locked; `None` is one of another
    server. `is_counted` = the count has only been counted on since it was last that of the database.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs = waiting_jobs()
        self.is_counted = True
        self.stored: list[int] = []
        self.locks: dict[int, Writer | None] = {}
        self.writers: list[Writer] = []
        self.last = 0
        self.add(4)

    @rule(count=st.integers(1, 3))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.last += 1
            self.stored.append(self.last)
            self.jobs.add(QueueHead(0, self.last), 1)

    @rule()
    def refresh_heads(self) -> None:
        self.jobs.refresh_heads([QueueHead(0, job_id) for job_id in self.stored], is_all=True)
        self.is_counted = not self.writers

    @precondition(lambda self: not self.jobs.has_open_matches)
    @rule()
    def count(self) -> None:
        self.jobs.count = len(set(self.stored) - self.jobs.taken)
        self.is_counted = not self._those(is_committed=False)

    @precondition(lambda self: self.jobs.heads and self.jobs.count > 0)
    @rule(firsts=st.integers(1, 2))
    def reserve(self, firsts: int) -> None:
        self.writers.append(Writer([self.jobs.reserve() for _ in range(min(firsts, len(self.jobs.heads)))], []))

    @precondition(lambda self: self.jobs.heads and self.jobs.count > 0)
    @rule(index=st.integers(0, 3), first=st.booleans())
    def claim(self, index: int, first: bool) -> None:
        head = self.jobs.heads[index % len(self.jobs.heads)]
        self.jobs.claim(head)
        self.writers.append(Writer([self.jobs.reserve()] if first and self.jobs.heads else [], [head.job_id]))

    @precondition(lambda self: self._those(is_answered=False))
    @rule(which=st.integers(0, 3))
    def lock(self, which: int) -> None:
        writer = self._pick(which, is_answered=False)
        writer.is_answered = True
        writer.certain_given = [job_id for job_id in writer.certain if job_id in self._free()]
        self.locks |= dict.fromkeys(writer.certain_given, writer)
        writer.firsts_given = self._free()[: len(writer.firsts)]
        self.locks |= dict.fromkeys(writer.firsts_given, writer)

    @precondition(lambda self: self._those(is_answered=True, is_applied=False))
    @rule(which=st.integers(0, 3))
    def apply_answer(self, which: int) -> None:
        writer = self._pick(which, is_answered=True, is_applied=False)
        writer.is_applied = True
        for job_id in set(writer.certain) - set(writer.certain_given):
            self.jobs.return_certain(job_id)
        self.jobs.confirm_certain(len(writer.certain_given))
        given = len(writer.firsts_given)
        if writer.firsts[given:]:
            self.jobs.exhaust(writer.firsts[given:])
            self.is_counted = False
        self.jobs.confirm(writer.firsts[:given], writer.firsts_given)

    @precondition(lambda self: self._those(is_applied=True, is_committed=None))
    @rule(which=st.integers(0, 3), is_committed=st.booleans())
    def end(self, which: int, is_committed: bool) -> None:
        writer = self._pick(which, is_applied=True, is_committed=None)
        writer.is_committed = is_committed
        for job_id in (*writer.certain_given, *writer.firsts_given):
            del self.locks[job_id]
            if is_committed:
                self.stored.remove(job_id)

    @precondition(lambda self: self._those(is_applied=True, is_committed=True))
    @rule(which=st.integers(0, 3))
    def apply_commit(self, which: int) -> None:
        writer = self._pick(which, is_applied=True, is_committed=True)
        self.jobs.commit([*writer.certain_given, *writer.firsts_given])
        self.writers.remove(writer)

    @precondition(lambda self: self._those(is_applied=True, is_committed=False))
    @rule(which=st.integers(0, 3))
    def apply_rollback(self, which: int) -> None:
        writer = self._pick(which, is_applied=True, is_committed=False)
        self.jobs.roll_back([*writer.certain_given, *writer.firsts_given])
        self.writers.remove(writer)

    @precondition(lambda self: self._those(is_answered=False))
    @rule(which=st.integers(0, 3))
    def fail_before_the_answer(self, which: int) -> None:
        writer = self._pick(which, is_answered=False)
        self.jobs.unreserve(writer.firsts)
        for job_id in writer.certain:
            self.jobs.return_certain(job_id)
        self.writers.remove(writer)

    @precondition(lambda self: self._free())
    @rule(index=st.integers(0, 3))
    def lock_on_another_server(self, index: int) -> None:
        free = self._free()
        self.locks[free[index % len(free)]] = None

    @rule(is_committed=st.booleans())
    def end_on_another_server(self, is_committed: bool) -> None:
        for job_id in [job_id for job_id, writer in self.locks.items() if writer is None]:
            del self.locks[job_id]
            if is_committed:
                self.stored.remove(job_id)
                self.jobs.remove(job_id)

    @invariant()
    def as_many_jobs_are_taken_as_matches_may_get(self) -> None:
        unanswered = [writer for writer in self.writers if not writer.is_applied]
        answered = [writer for writer in self.writers if writer.is_applied]
        claims = Counter(job_id for writer in unanswered for job_id in writer.certain)
        claims.update(job_id for writer in answered for job_id in (*writer.certain_given, *writer.firsts_given))
        assert self.jobs.claimed == claims
        assert len(self.jobs.reserved) == sum(len(writer.firsts) for writer in unanswered)
        assert self.jobs.taken.isdisjoint(head.job_id for head in self.jobs.heads)
        if not self.writers:
            assert self.jobs.count == len(self.stored) or not self.is_counted
            self.refresh_heads()
            assert (ids(self.jobs), self.jobs.count) == (self.stored, len(self.stored))

    def _free(self) -> list[int]:
        return [job_id for job_id in self.stored if job_id not in self.locks]

    def _those(self, **fields: bool | None) -> list[Writer]:
        return [
            writer for writer in self.writers if all(getattr(writer, name) is value for name, value in fields.items())
        ]

    def _pick(self, which: int, **fields: bool | None) -> Writer:
        found = self._those(**fields)
        return found[which % len(found)]


TestSeveralWriters = SeveralWriters.TestCase
