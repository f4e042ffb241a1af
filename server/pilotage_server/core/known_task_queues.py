"""The task queues that a server knows, each with its line of waiting jobs, found by id, place, pool, owner, account."""

from __future__ import annotations

from collections import Counter
from collections.abc import KeysView
from typing import TypeVar

from pilotage_server.core.account_order import AccountOrder
from pilotage_server.core.accounting import Account
from pilotage_server.core.place_sets import Places
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.trait_sets import TraitSets
from pilotage_server.core.value_counts import ValueCounts
from pilotage_server.core.waiting_line import Line

Key = TypeVar("Key")


class KnownTaskQueues:
    """The task queues.

    `values` counts the values that tell them apart, `places` and `traits` are what sets of them are made with.
    `orders` holds the order within each account that has task queues.
    """

    def __init__(self) -> None:
        self.values = ValueCounts()
        self.places = Places()
        self.traits = TraitSets()
        self.orders: dict[Account, AccountOrder] = {}
        self.changes = 0
        """Grows with each task queue that comes or goes."""

        self._lines: dict[int, Line] = {}
        self._by_place: dict[int, Line] = {}
        self._of_account: Counter[Account] = Counter()
        self._by_owner: dict[Account, set[int]] = {}
        self._by_pool: dict[str, set[int]] = {}

    def line(self, task_queue_id: int) -> Line | None:
        """Return the line of a task queue; None = not known."""
        return self._lines.get(task_queue_id)

    def at(self, place: int) -> Line:
        """Return the line that has this place, which somebody must have."""
        return self._by_place[place]

    def line_at(self, place: int) -> Line | None:
        """Return the line that has this place; None = nobody has."""
        return self._by_place.get(place)

    def task_queue(self, task_queue_id: int) -> TaskQueue | None:
        """Return a task queue by its id; None = not known."""
        line = self._lines.get(task_queue_id)
        return None if line is None else line.task_queue

    def ids(self) -> KeysView[int]:
        """Return the ids of all task queues, also of those in which nothing waits."""
        return self._lines.keys()

    def of_owner(self, owner: Account) -> frozenset[int]:
        """Return the ids of all task queues of an owner, whoever is charged for them."""
        return frozenset(self._by_owner.get(owner, ()))

    def all_places(self) -> list[int]:
        """Return the places of all task queues."""
        return list(self._by_place)

    def places_of_pool(self, pool_id: str) -> list[int]:
        """Return the places of a pool's task queues; "" = of those without a pool."""
        return [self._lines[task_queue_id].place for task_queue_id in self._by_pool.get(pool_id, ())]

    def places_of_owner(self, owner: Account) -> list[int]:
        """Return the places of all task queues of an owner, whoever is charged for them."""
        return [self._lines[task_queue_id].place for task_queue_id in self._by_owner.get(owner, ())]

    def _add(self, task_queue: TaskQueue) -> Line:
        line = Line(task_queue, self.places.give(), self._order_for(task_queue.account))
        self._lines[task_queue.id] = self._by_place[line.place] = line
        self.values.note(task_queue)
        self.traits.add(task_queue, line.place)
        self._by_pool.setdefault(task_queue.pool_id, set()).add(task_queue.id)
        self._by_owner.setdefault(task_queue.traits.account, set()).add(task_queue.id)
        self.changes += 1
        return line

    def _drop(self, line: Line) -> None:
        """Forget a task queue, in whose line nobody is any more."""
        task_queue = line.task_queue
        del self._lines[task_queue.id], self._by_place[line.place]
        self.places.take_back(line.place)
        self.values.forget(task_queue)
        self.traits.forget(task_queue, line.place)
        _discard(self._by_pool, task_queue.pool_id, task_queue.id)
        _discard(self._by_owner, task_queue.traits.account, task_queue.id)
        self._of_account[line.account] -= 1
        if not self._of_account[line.account]:
            del self._of_account[line.account], self.orders[line.account]
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
