"""The task queues that a server knows, with their waiting jobs; an index of the database in memory.

It is changed by committed transactions and, ahead of their commits, by matches. Its size grows with the task queues,
not with the jobs. Counts are sums of additions and removals, so the order in which two transactions apply theirs does
not matter. The next match reads the heads that it lacks, and the task queues of which only the ids are known.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import count as counter
from typing import NamedTuple, TypeVar

from pilotage.values.accounts import Account
from pilotage_server.core.queueing.account_order import AccountOrder
from pilotage_server.core.queueing.bitsets import BitAllocator
from pilotage_server.core.queueing.task_queue import TaskQueue, ValueCounts
from pilotage_server.core.queueing.trait_index import TraitIndex
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingJobs, WaitingTaskQueue

Key = TypeVar("Key")


class KnownTaskQueues:
    """The task queues, found by id, bit, pool, owner and account.

    `values` counts the attribute values that tell them apart. `bits` and `traits` make bit sets of them. `orders` holds
    the order of each account that has task queues.
    """

    def __init__(self) -> None:
        self.values = ValueCounts()
        self.bits = BitAllocator()
        self.traits = TraitIndex()
        self.orders: dict[Account, AccountOrder] = {}
        self.changes = 0
        """Grows with each task queue that is added or removed."""

        self._by_id: dict[int, WaitingJobs] = {}
        self._by_bit: dict[int, WaitingJobs] = {}
        self._of_account: Counter[Account] = Counter()
        self._by_owner: dict[Account, set[int]] = {}
        self._by_pool: dict[str, set[int]] = {}

    def get(self, task_queue_id: int) -> WaitingJobs | None:
        """Return the waiting jobs of a task queue; None = not known."""
        return self._by_id.get(task_queue_id)

    def at_bit(self, bit: int) -> WaitingJobs:
        """Return the waiting jobs of the task queue with this bit, which must be in use."""
        return self._by_bit[bit]

    def find_at_bit(self, bit: int) -> WaitingJobs | None:
        """Return the waiting jobs of the task queue with this bit; None = the bit is free."""
        return self._by_bit.get(bit)

    def task_queue(self, task_queue_id: int) -> TaskQueue | None:
        """Return a task queue by its id; None = not known."""
        waiting = self._by_id.get(task_queue_id)
        return None if waiting is None else waiting.task_queue

    def ids(self) -> KeysView[int]:
        """Return the ids of all task queues, also of empty ones."""
        return self._by_id.keys()

    def all_bits(self) -> list[int]:
        """Return the bits of all task queues."""
        return list(self._by_bit)

    def bits_of_pool(self, pool_id: str) -> list[int]:
        """Return the bits of a pool's task queues; "" = of those without a pool."""
        return [self._by_id[task_queue_id].bit for task_queue_id in self._by_pool.get(pool_id, ())]

    def bits_of_owner(self, owner: Account) -> list[int]:
        """Return the bits of all task queues of an owner, whichever account is charged."""
        return [self._by_id[task_queue_id].bit for task_queue_id in self._by_owner.get(owner, ())]

    def _add(self, task_queue: TaskQueue) -> WaitingJobs:
        waiting = WaitingJobs(task_queue, self.bits.allocate(), self._order_for(task_queue.account))
        self._by_id[task_queue.id] = self._by_bit[waiting.bit] = waiting
        self.values.add(task_queue)
        self.traits.add(task_queue, waiting.bit)
        self._by_pool.setdefault(task_queue.pool_id, set()).add(task_queue.id)
        self._by_owner.setdefault(task_queue.traits.account, set()).add(task_queue.id)
        self.changes += 1
        return waiting

    def _remove(self, waiting: WaitingJobs) -> None:
        task_queue = waiting.task_queue
        del self._by_id[task_queue.id], self._by_bit[waiting.bit]
        self.bits.release(waiting.bit)
        self.values.remove(task_queue)
        self.traits.remove(task_queue, waiting.bit)
        _discard(self._by_pool, task_queue.pool_id, task_queue.id)
        _discard(self._by_owner, task_queue.traits.account, task_queue.id)
        self._of_account[waiting.account] -= 1
        if not self._of_account[waiting.account]:
            del self._of_account[waiting.account], self.orders[waiting.account]
        self.changes += 1

    def _order_for(self, account: Account) -> AccountOrder:
        self._of_account[account] += 1
        if account not in self.orders:
            self.orders[account] = AccountOrder()
        return self.orders[account]


def _discard(index: dict[Key, set[int]], key: Key, task_queue_id: int) -> None:
    ids = index.get(key)
    if ids is not None:
        ids.discard(task_queue_id)
        if not ids:
            del index[key]


MOST_HEADS = 200_000
"""The most heads that are kept in all, beside one for each task queue."""


class HeadCache:
    """Counts the heads of all task queues and drops those of the least recently read ones when there are too many."""

    def __init__(self, all_waiting: Mapping[int, WaitingJobs], most: int = MOST_HEADS) -> None:
        self._by_id = all_waiting
        self._most = most
        self._heads = 0
        self._longer: OrderedDict[int, None] = OrderedDict()

    def update(self, waiting: WaitingJobs) -> None:
        """Count the heads of a task queue that has changed."""
        self._count(waiting)
        if waiting.cached_heads > 1 and waiting.task_queue.id not in self._longer:
            self._longer[waiting.task_queue.id] = None
            while self._heads > self._most + len(self._by_id) and self._longer:
                self._shorten(self._longer.popitem(last=False)[0])

    def remove_one(self, waiting: WaitingJobs) -> None:
        """Count one head less: a match has taken it, and more are known."""
        waiting.cached_heads -= 1
        self._heads -= 1

    def touch(self, task_queue_id: int) -> None:
        """Make a task queue the last to be shortened, after its heads were read."""
        self._longer.pop(task_queue_id, None)

    def check(self) -> None:
        """Assert the invariants."""
        assert self._heads == sum(len(waiting.heads) for waiting in self._by_id.values())
        assert self._heads <= self._most + len(self._by_id)

    def _shorten(self, task_queue_id: int) -> None:
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            waiting.shorten(1)
            self._count(waiting)

    def _count(self, waiting: WaitingJobs) -> None:
        self._heads += len(waiting.heads) - waiting.cached_heads
        waiting.cached_heads = len(waiting.heads)


class CountSnapshot(NamedTuple):
    """The state of a task queue's count: `version` changes with each change.

    `waiting` was counted up since `base` was set. Jobs in `claimed` are taken by matches that have not ended: they do
    not count, though the database may have them waiting. `is_pending` = there is more to apply: of a transaction in
    `PendingChanges`, or of a match without an answer.
    """

    version: int
    waiting: int
    base: int
    claimed: frozenset[int]
    is_pending: bool

    def is_settled_since(self, before: CountSnapshot | None) -> bool:
        """Whether nothing was applied since `before`, and nothing was or is pending."""
        return self == before and not self.is_pending


class PendingChanges:
    """Marks on task queues in which transactions of this server add or remove jobs and are not applied to the end.

    While there is a mark, the database may have jobs that memory lacks, or the other way round. A count of the database
    would then include jobs that are counted once more when they are applied. Matches set no marks: `WaitingJobs` knows
    what they have claimed.
    """

    def __init__(self) -> None:
        self._marks: Counter[int] = Counter()

    def begin(self, task_queue_ids: Iterable[int]) -> None:
        """Set a mark on each of these task queues, for a transaction that is to commit."""
        self._marks.update(task_queue_ids)

    def end(self, task_queue_ids: Iterable[int]) -> None:
        """Remove one mark from each: the change is applied, or the transaction failed."""
        for task_queue_id in task_queue_ids:
            self._marks[task_queue_id] -= 1
            if not self._marks[task_queue_id]:
                del self._marks[task_queue_id]

    def __contains__(self, task_queue_id: int) -> bool:
        return task_queue_id in self._marks


class TaskQueueIndex(KnownTaskQueues):
    """The task queues with their waiting jobs, ordered by account."""

    def __init__(self, most_heads: int = MOST_HEADS) -> None:
        super().__init__()
        self.activated: set[Account] = set()
        """The accounts whose first job has begun to wait; the keeper of an account order empties it."""
        self.stale_counts: set[int] = set()
        """The task queues whose counts may be wrong; the next recount empties it."""
        self.pending = PendingChanges()
        """The task queues in which transactions under way add or remove jobs."""

        self._unknown: set[int] = set()
        self._versions = counter(1)
        self._head_cache = HeadCache(self._by_id, most_heads)

    def add(self, task_queue: TaskQueue, count: int = 0, head: QueueHead | None = None, assumed: int = 0) -> None:
        """Add a task queue of the database with its waiting jobs; a known one unsettled as it is.

        `assumed` = so many more are counted until all have been counted.
        """
        if task_queue.id not in self._by_id:
            self._unknown.discard(task_queue.id)
            waiting = self._add(task_queue)
            waiting.count = count + assumed
            self._rebase(waiting)
            waiting.assumed = assumed
            waiting.set_head(head)
            self._update(waiting)

    def set_count(self, task_queue: TaskQueue, count: int, head: QueueHead | None) -> None:
        """Set the waiting jobs of a task queue after a transaction that moved jobs, and mark the count as stale.

        Changes of other transactions may be included already, or not.
        """
        waiting = self._by_id.get(task_queue.id)
        if waiting is None:
            self.add(task_queue, count, head)
        else:
            waiting.set_count(count, head)
            self._rebase(waiting)
            self._update(waiting)
        self.stale_counts.add(task_queue.id)

    def unknown(self) -> frozenset[int]:
        """Return the ids of task queues that have got jobs and whose traits are not known here."""
        return frozenset(self._unknown)

    def remove(self, task_queue_ids: Iterable[int]) -> None:
        """Remove task queues that the database no longer has."""
        for task_queue_id in task_queue_ids:
            waiting = self._by_id.get(task_queue_id)
            if waiting is not None:
                waiting.exhaust(())
                self._update(waiting)
                self._remove(waiting)

    def add_jobs(self, task_queue_id: int, head: QueueHead, count: int = 1) -> None:
        """Count jobs that have begun to wait; `head` is the first of them."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is None:
            self._unknown.add(task_queue_id)
            return
        waiting.add(head, count)
        self._update(waiting)

    def remove_job(self, task_queue_id: int, job_id: int) -> None:
        """Count a job that no longer waits."""
        self.remove_jobs(task_queue_id, [job_id])

    def remove_jobs(self, task_queue_id: int, job_ids: Iterable[int]) -> None:
        """Count jobs that no longer wait."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            for job_id in job_ids:
                waiting.remove(job_id)
            self._update(waiting)

    def refresh_heads(self, task_queue_id: int, heads: Iterable[QueueHead], *, is_all: bool) -> None:
        """Set the first jobs that the database has, in order; `is_all` = there are no more."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            before = waiting.count
            waiting.refresh_heads(heads, is_all=is_all, is_settled=task_queue_id not in self.pending)
            if waiting.count != before:  # changes of other servers may be counted already, or twice
                self._rebase(waiting)
                self.stale_counts.add(task_queue_id)
            self._head_cache.touch(task_queue_id)
            self._update(waiting)

    def reserve(self, waiting: WaitingJobs) -> QueueHead:
        """Reserve the first job of a task queue for a match that is not committed; its head must be known."""
        head = waiting.reserve()
        self._update_taken(waiting)
        return head

    def claim(self, waiting: WaitingJobs, head: QueueHead) -> QueueHead:
        """Claim a certain job of a task queue for a match that is not committed; its head must be known."""
        waiting.claim(head)
        self._update_taken(waiting)
        return head

    def unreserve(self, task_queue_id: int, taken: Sequence[QueueHead]) -> None:
        """Return reserved jobs, for which the database was not asked."""
        self._return(task_queue_id, lambda waiting: waiting.unreserve(taken))

    def return_certain(self, task_queue_id: int, job_id: int) -> None:
        """Return a certain job that the database did not give, or for which it was not asked."""
        self._return(task_queue_id, lambda waiting: waiting.return_certain(job_id))

    def roll_back(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Return claimed jobs: the transaction has failed."""
        self._return(task_queue_id, lambda waiting: waiting.roll_back(job_ids))

    def restore(self, task_queue_id: int, head: QueueHead) -> None:
        """Return a job that was removed by a transaction that failed."""
        self._return(task_queue_id, lambda waiting: waiting.restore(head))

    def confirm(self, task_queue_id: int, taken: Sequence[QueueHead], job_ids: Sequence[int]) -> None:
        """Apply the jobs that the database gave for the reserved ones of a task queue."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            waiting.confirm(taken, job_ids)
            self._update(waiting)

    def confirm_certain(self, task_queue_id: int, count: int) -> None:
        """Apply that the database gave so many certain jobs of a task queue."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            waiting.confirm_certain(count)
            self._update(waiting)

    def commit(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Apply that the transaction that claimed these jobs has committed."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            waiting.commit(job_ids)
            self._update(waiting)

    def exhaust(self, task_queue_id: int, taken: Iterable[QueueHead]) -> None:
        """Apply that the database had no job for the reserved ones: none waits."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            waiting.exhaust(taken)
            self._rebase(waiting)
            self._update(waiting)
            self.stale_counts.add(task_queue_id)

    def snapshot(self, ids: Iterable[int] | None = None) -> Mapping[int, CountSnapshot]:
        """Return the count snapshots of task queues (None = of all), to be taken before the database is read."""
        all_waiting = self._by_id.values() if ids is None else map(self._by_id.get, ids)
        return {waiting.task_queue.id: self._snapshot_of(waiting) for waiting in all_waiting if waiting is not None}

    def apply_counts(self, before: Mapping[int, CountSnapshot], counts: Mapping[int, int]) -> frozenset[int]:
        """Apply what the database counted at the time of the snapshot `before`; later changes stay.

        Returns the task queues whose count was applied: the counts of the others have been set meanwhile.
        """
        counted = {each for each in counts if each in self._by_id and self._by_id[each].base == before[each].base}
        for task_queue_id in counted:
            waiting = self._by_id[task_queue_id]
            waiting.count += counts[task_queue_id] - before[task_queue_id].waiting
            self._rebase(waiting)
            self._update(waiting)
        return frozenset(counted)

    def sync(
        self,
        before: Mapping[int, CountSnapshot],
        known: Iterable[TaskQueue],
        counts: Mapping[int, tuple[int, QueueHead | None]],
    ) -> dict[int, int]:
        """Apply the database's counts to task queues that have not changed since `before` and have no pending changes.

        `known` are all task queues with a live job; others are removed. A task queue that is missing in `counts`, which
        leave out claimed jobs, has no waiting jobs. Returns by how many jobs counts have grown, where they have.
        """
        snapshots = {id_: self._snapshot_of(waiting) for id_, waiting in self._by_id.items()}
        unsettled = {id_ for id_, now in snapshots.items() if not now.is_settled_since(before.get(id_))}
        live = {each.id: each for each in known if each.id in self._by_id or each.id not in self.pending}
        self.stale_counts |= self._unknown & live.keys()  # these may have got more jobs since the database was read
        more: dict[int, int] = {}
        for task_queue_id in live.keys() - unsettled:
            count, head = counts.get(task_queue_id, (0, None))
            self.add(live[task_queue_id])
            waiting = self._by_id[task_queue_id]
            if count > max(0, waiting.count):
                more[task_queue_id] = count - max(0, waiting.count)
            waiting.count = count
            self._rebase(waiting)
            waiting.set_head(head)
            waiting.shorten(count)
            self._update(waiting)
        self.remove(self._by_id.keys() - live.keys() - unsettled)
        return more

    def discard_unknown(self, task_queue_ids: Iterable[int]) -> None:
        """Remove unknown task queues that were looked up; the database may lack them as well."""
        self._unknown.difference_update(task_queue_ids)

    def count(self, task_queue_id: int) -> int:
        """Return how many jobs wait in a task queue."""
        waiting = self._by_id.get(task_queue_id)
        return max(0, waiting.count) if waiting is not None else 0

    def jobs_left(self, task_queue_id: int) -> int:
        """Return how many jobs of a task queue wait, or will again if the matches that claimed them fail."""
        waiting = self._by_id.get(task_queue_id)
        return 0 if waiting is None else max(0, waiting.count) + len(waiting.taken)

    def accounts(self) -> Iterator[Account]:
        """Return the accounts that have waiting jobs."""
        return iter([account for account, order in self.orders.items() if order])

    def of_account(self, account: Account) -> tuple[WaitingTaskQueue, ...]:
        """Return the task queues of an account that have waiting jobs, in order."""
        order = self.orders.get(account)
        positions = order.positions() if order is not None else []
        return tuple(self._by_id[task_queue_id].summary for _, _, task_queue_id, _ in positions)

    def of_pool(self, pool_id: str) -> tuple[WaitingTaskQueue, ...]:
        """Return all task queues of a pool, also empty ones."""
        return tuple(self._by_id[task_queue_id].summary for task_queue_id in sorted(self._by_pool.get(pool_id, ())))

    def count_by_vo(self) -> dict[str, int]:
        """Return how many jobs of each VO wait; a VO without waiting jobs has 0 as long as it has a task queue."""
        counts: dict[str, int] = {}
        for waiting in self._by_id.values():
            vo = waiting.account.vo
            counts[vo] = counts.get(vo, 0) + max(0, waiting.count)
        return counts

    def waiting(self) -> tuple[WaitingTaskQueue, ...]:
        """Return every task queue that has waiting jobs, by id."""
        return tuple(self._by_id[each].summary for each in sorted(self._by_id) if self._by_id[each].count > 0)

    def check(self) -> None:
        """Assert the invariants."""
        self._head_cache.check()
        for account, order in self.orders.items():
            own = [waiting for waiting in self._by_id.values() if waiting.account == account]
            assert own, "an account without task queues is removed"
            order.check()
            assert order.positions() == sorted(waiting.current_position() or () for waiting in own if waiting.count > 0)
        for waiting in self._by_id.values():
            assert waiting.order is self.orders[waiting.account]
            assert self._by_bit[waiting.bit] is waiting
            waiting.check()

    def _snapshot_of(self, waiting: WaitingJobs) -> CountSnapshot:
        is_pending = waiting.has_open_matches or waiting.task_queue.id in self.pending
        return CountSnapshot(waiting.version, waiting.count, waiting.base, frozenset(waiting.taken), is_pending)

    def _return(self, task_queue_id: int, return_jobs: Callable[[WaitingJobs], None]) -> None:
        """Return jobs to a task queue; a count taken meanwhile may include them already, so it is stale."""
        waiting = self._by_id.get(task_queue_id)
        if waiting is not None:
            return_jobs(waiting)
            self._update(waiting)
            self.stale_counts.add(task_queue_id)

    def _rebase(self, waiting: WaitingJobs) -> None:
        """Mark the count as set: none of it is assumed, and no difference from an older snapshot applies."""
        waiting.assumed = 0
        waiting.base = next(self._versions)

    def _update_taken(self, waiting: WaitingJobs) -> None:
        """Update what is derived from a task queue after a match has taken a job; quick where more are known."""
        before, after = waiting.position, waiting.current_position()
        if not waiting.heads or before is None or after is None:
            self._update(waiting)
            return
        self._head_cache.remove_one(waiting)
        waiting.version = next(self._versions)
        waiting.position = after
        waiting.order.move(before, after)

    def _update(self, waiting: WaitingJobs) -> None:
        """Update everything that is derived from a task queue's waiting jobs."""
        waiting.version = next(self._versions)
        before, after = waiting.position, waiting.current_position()
        if before != after:
            waiting.position = after
            if not waiting.order:
                self.activated.add(waiting.account)
            if after is None:
                self.stale_counts.add(waiting.task_queue.id)
            waiting.order.replace(before, after)
        self._head_cache.update(waiting)
