"""Which task queues have waiting jobs: their traits, how many wait, and which job is first.

Rules
-----
A picture of what the database has, changed only by what has been committed; its size grows with the task
queues, never with the jobs. Counts are sums of what came and went, so it does not matter in which order two
transactions tell of theirs. What is not known (a head that has gone, a task queue never heard of) is asked
for by name, and read from the database by who matches next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pilotage_server.core.accounting import Account
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.value_counts import ValueCounts

Key = TypeVar("Key")


class Head(NamedTuple):
    """The job of a task queue that goes first: the highest priority, then the first that came."""

    priority: int
    job_id: int

    @property
    def order(self) -> tuple[int, int]:
        """Sorts heads, the first to go first."""
        return (-self.priority, self.job_id)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task queue with jobs that wait; `head` None = not known at present."""

    task_queue: TaskQueue
    count: int
    head: Head | None


class WaitingIndex:
    """The task queues with their waiting jobs, by account, so that an order between accounts is quick to walk.

    `values` counts the values that tell them apart.
    """

    def __init__(self) -> None:
        self.values = ValueCounts()
        self._waiting: dict[int, Waiting] = {}
        self._by_account: dict[Account, set[int]] = {}
        self._by_owner: dict[Account, set[int]] = {}
        self._by_pool: dict[str, set[int]] = {}
        self._headless: set[int] = set()
        self._unknown: set[int] = set()
        self.changes = 0
        """Grows with each task queue that comes or goes."""

    def take_in(self, task_queue: TaskQueue, count: int = 0, head: Head | None = None) -> None:
        """Take in a task queue that the database has, with what waits in it; one that is known stays as it is."""
        if task_queue.id not in self._waiting:
            self._unknown.discard(task_queue.id)
            self.values.note(task_queue)
            self._by_pool.setdefault(task_queue.pool_id, set()).add(task_queue.id)
            self._by_owner.setdefault(task_queue.traits.account, set()).add(task_queue.id)
            self.changes += 1
            self._set(Waiting(task_queue, count, head))

    def unknown(self) -> frozenset[int]:
        """Return the ids of task queues to which jobs have come and whose traits are not known here."""
        return frozenset(self._unknown)

    def headless(self) -> frozenset[int]:
        """Return the ids of task queues in which jobs wait and whose first job is not known."""
        return frozenset(self._headless)

    def forget(self, task_queue_ids: Iterable[int]) -> None:
        """Drop task queues that the database no longer has."""
        for task_queue_id in task_queue_ids:
            gone = self._waiting.pop(task_queue_id, None)
            if gone is not None:
                self.values.forget(gone.task_queue)
                _discard(self._by_account, gone.task_queue.account, task_queue_id)
                _discard(self._by_pool, gone.task_queue.pool_id, task_queue_id)
                _discard(self._by_owner, gone.task_queue.traits.account, task_queue_id)
                self.changes += 1
                self._headless.discard(task_queue_id)

    def enqueued(self, task_queue_id: int, head: Head, count: int = 1) -> None:
        """Count jobs that have come to wait; `head` is the first of them."""
        before = self._waiting.get(task_queue_id)
        if before is None:
            self._unknown.add(task_queue_id)
            return
        first = _earlier(before.head, head) if before.head is not None else (head if before.count <= 0 else None)
        self._set(Waiting(before.task_queue, before.count + count, first))

    def dequeued(self, task_queue_id: int, job_id: int) -> None:
        """Count a job that no longer waits."""
        before = self._waiting.get(task_queue_id)
        if before is not None:
            head = None if before.head is not None and before.head.job_id == job_id else before.head
            self._set(Waiting(before.task_queue, before.count - 1, head))

    def renew_head(self, task_queue_id: int, head: Head | None) -> None:
        """Take in what the database says is the head."""
        before = self._waiting.get(task_queue_id)
        if before is not None:
            self._set(Waiting(before.task_queue, before.count, head))

    def snapshot(self) -> Mapping[int, Waiting]:
        """Return everything as it is now, to be handed to `agree` when the database has been asked."""
        return dict(self._waiting)

    def agree(
        self, before: Mapping[int, Waiting], known: Iterable[TaskQueue], counts: Mapping[int, tuple[int, Head | None]]
    ) -> dict[int, int]:
        """Take in what the database says, as far as nothing has been told here since `before`.

        `known` are all task queues with a live job, others are forgotten; one that `counts` lacks has no jobs that
        wait. Returns how many more wait than was known, where any do.
        """
        stays = {id_ for id_, waiting in self._waiting.items() if before.get(id_) is not waiting}
        live = {task_queue.id: task_queue for task_queue in known}
        more: dict[int, int] = {}
        for task_queue_id in live.keys() - stays:
            count, head = counts.get(task_queue_id, (0, None))
            if count > self.count(task_queue_id):
                more[task_queue_id] = count - self.count(task_queue_id)
            self.take_in(live[task_queue_id])
            self._set(Waiting(live[task_queue_id], count, head))
        self.forget(self._waiting.keys() - live.keys() - stays)
        return more

    def asked(self, task_queue_ids: Iterable[int]) -> None:
        """Take note that the database has been asked for these unknown task queues; it may not have them either."""
        self._unknown.difference_update(task_queue_ids)

    def task_queue(self, task_queue_id: int) -> TaskQueue | None:
        """Return a task queue by its id; None = not known."""
        waiting = self._waiting.get(task_queue_id)
        return None if waiting is None else waiting.task_queue

    def ids(self) -> KeysView[int]:
        """Return the ids of all task queues, also of those in which nothing waits."""
        return self._waiting.keys()

    def of_owner(self, owner: Account) -> frozenset[int]:
        """Return the ids of all task queues of an owner, whoever is charged for them."""
        return frozenset(self._by_owner.get(owner, ()))

    def count(self, task_queue_id: int) -> int:
        """Return how many jobs wait in a task queue."""
        waiting = self._waiting.get(task_queue_id)
        return max(0, waiting.count) if waiting is not None else 0

    def head(self, task_queue_id: int) -> Head | None:
        """Return the first waiting job of a task queue; None = nothing waits there, or it is not known."""
        waiting = self._waiting.get(task_queue_id)
        return None if waiting is None else waiting.head

    def accounts(self) -> Iterator[Account]:
        """Return the accounts that have waiting jobs."""
        return iter(tuple(self._by_account))

    def accounts_among(self, task_queue_ids: frozenset[int]) -> Iterator[Account]:
        """Return the accounts that have waiting jobs in any of these task queues."""
        return iter([account for account, ids in self._by_account.items() if not ids.isdisjoint(task_queue_ids)])

    def of_account(self, account: Account) -> tuple[Waiting, ...]:
        """Return the task queues of an account that have waiting jobs."""
        return tuple(self._waiting[task_queue_id] for task_queue_id in self._by_account.get(account, ()))

    def of_pool(self, pool_id: str) -> tuple[Waiting, ...]:
        """Return all task queues of a pool, also those in which nothing waits."""
        return tuple(self._waiting[task_queue_id] for task_queue_id in sorted(self._by_pool.get(pool_id, ())))

    def waiting(self) -> tuple[Waiting, ...]:
        """Return every task queue that has waiting jobs, in the order of the ids."""
        ids = sorted(task_queue_id for ids in self._by_account.values() for task_queue_id in ids)
        return tuple(self._waiting[task_queue_id] for task_queue_id in ids)

    def _set(self, waiting: Waiting) -> None:
        task_queue = waiting.task_queue
        self._waiting[task_queue.id] = waiting
        if waiting.count > 0:
            self._by_account.setdefault(task_queue.account, set()).add(task_queue.id)
        else:
            _discard(self._by_account, task_queue.account, task_queue.id)
        if waiting.count > 0 and waiting.head is None:
            self._headless.add(task_queue.id)
        else:
            self._headless.discard(task_queue.id)


def _earlier(one: Head, other: Head) -> Head:
    return min(one, other, key=lambda head: head.order)


def _discard(index: dict[Key, set[int]], key: Key, task_queue_id: int) -> None:
    ids = index.get(key)
    if ids is not None:
        ids.discard(task_queue_id)
        if not ids:
            del index[key]
