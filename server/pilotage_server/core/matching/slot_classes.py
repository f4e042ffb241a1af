"""Slot classes: slots that may take the same task queues as far as access and sizes are concerned.

A class is keyed by a few values of a request, so that nearly all requests find theirs made already. Its set may hold
task queues that the queue does not admit: `QueueAccess` is asked when such a task queue comes first, once a queue. New
task queues and changed mappings are applied when a class is used again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from pilotage.resources.tree import QueueId
from pilotage.text import folded_set
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer
from pilotage_server.core.queueing.bitsets import ALL_BITS, bit_set
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.trait_index import SizeClass
from pilotage_server.core.queueing.waiting_jobs import WaitingJobs

MAX_CLASSES = 8192

_MOST_REFUSED = 256
"""After so many refusals one by one, all admitted task queues of a queue are looked up at once."""


class _QueueFilter:
    """The task queues that a queue may admit for pilots of one isolation, of which some have been checked.

    At first these are all. Where few are refused it stays so: after a new tree, when every filter is new, no request
    has to wait until everything is looked up. `version` changes with each change of the task queues or mappings.
    """

    __slots__ = ("_access", "_checked", "_isolation", "_refused", "_seen", "_waiting", "possible", "queue", "version")

    def __init__(self, queue: QueueId, isolation: Isolation, access: QueueAccess, waiting: TaskQueueIndex) -> None:
        self.queue = queue
        self._isolation = isolation
        self._access = access
        self._waiting = waiting
        self._seen = self._versions()
        self._reset()
        self.version = 0

    def admits(self, waiting: WaitingJobs) -> bool:
        """Whether the queue admits a task queue; looked up once."""
        if not self._checked >> waiting.bit & 1:
            self._checked |= 1 << waiting.bit
            if not self._access.admits_pilot(waiting.task_queue, self.queue, self._isolation):
                self._refuse(waiting)
        return bool(self.possible >> waiting.bit & 1)

    def refresh(self) -> None:
        """Apply changed task queues and mappings."""
        seen = self._versions()
        if seen == self._seen:
            return
        bits = self._waiting.bits.changes.since(self._seen[0])
        pools = self._access.mappings.changes.since(self._seen[1])
        if bits is None or pools is None:
            self._reset()
        else:
            self._recheck(bit_set(bits) | self._of_pools(pools))
        self._seen = seen
        self.version += 1

    def _reset(self) -> None:
        self._checked = self._refused = 0
        self.possible = ALL_BITS

    def _refuse(self, waiting: WaitingJobs) -> None:
        self.possible &= ~(1 << waiting.bit)
        self._refused += 1
        if self._refused == _MOST_REFUSED:
            self.possible &= self._of_pools(("", *self._access.mappings.pools(self.queue)))

    def _recheck(self, bits: int) -> None:
        self.possible |= bits
        self._checked &= ~bits

    def _of_pools(self, pools: Iterable[str]) -> int:
        return bit_set(bit for pool_id in pools for bit in self._waiting.bits_of_pool(pool_id))

    def _versions(self) -> tuple[int, int]:
        return self._waiting.bits.changes.now, self._access.mappings.changes.now


class _ClassKey(NamedTuple):
    """What tells the slots of a queue apart."""

    vos: tuple[str, ...]
    size: SizeClass
    declined: frozenset[int]


class SlotClass:
    """Slots that may take the same task queues.

    `possible` is the set of those that may fit, `uncertain` of those whose times have to be checked. `certain` are
    those that go wherever only limits are to be checked; the matcher adds to it what it has found out.
    """

    __slots__ = ("_filter", "_key", "_version", "_waiting", "certain", "possible", "uncertain")

    def __init__(self, key: _ClassKey, queue_filter: _QueueFilter, waiting: TaskQueueIndex) -> None:
        self.possible = 0
        self.uncertain = 0
        self.certain = 0
        self._key = key
        self._filter = queue_filter
        self._waiting = waiting
        self._version = -1

    def refresh(self) -> None:
        """Apply changed task queues and mappings."""
        self._filter.refresh()
        if self._version != self._filter.version:
            self._version = self._filter.version
            self.certain = 0
            self.possible = self._filter.possible & self._of_vos() & self._waiting.traits.fitting(self._key.size)
            self.possible &= ~self._declined()
            self.uncertain = self._waiting.traits.uncertain(self._key.size)

    def admits(self, waiting: WaitingJobs) -> bool:
        """Whether the queue admits a task queue of `possible`; if not, it is removed from there."""
        if self._filter.admits(waiting):
            return True
        self.possible &= self._filter.possible
        return False

    def _of_vos(self) -> int:
        found = 0 if self._key.vos else ALL_BITS
        for vo in folded_set(self._key.vos):
            found |= self._waiting.traits.of_vo(vo)
        return found

    def _declined(self) -> int:
        all_waiting = (self._waiting.get(task_queue_id) for task_queue_id in self._key.declined)
        return bit_set(waiting.bit for waiting in all_waiting if waiting is not None)


class SlotClasses:
    """The classes of recently offered slots."""

    def __init__(self, waiting: TaskQueueIndex, end_margin: timedelta, most: int = MAX_CLASSES) -> None:
        self._waiting = waiting
        self._end_margin = end_margin
        self._most = most
        self._access: QueueAccess | None = None
        self._filters: OrderedDict[tuple[QueueId, Isolation], tuple[_QueueFilter, dict[_ClassKey, SlotClass]]] = (
            OrderedDict()
        )
        self._classes = 0

    def of(self, slot: SlotOffer, queue: QueueId, vos: tuple[str, ...], access: QueueAccess) -> SlotClass:
        """Return the class of a slot of a pilot of this queue that serves the VOs, none = all."""
        if access is not self._access:
            self._access = access
            self._filters.clear()
            self._classes = 0
        queue_filter, classes = self._filter(queue, slot.isolation, access)
        key = _ClassKey(vos, self._waiting.traits.size_class(slot, self._end_margin), slot.declined_task_queues)
        found = classes.get(key)
        if found is None:
            found = classes[key] = SlotClass(key, queue_filter, self._waiting)
            self._classes += 1
            self._make_room()
        found.refresh()
        return found

    def _filter(
        self, queue: QueueId, isolation: Isolation, access: QueueAccess
    ) -> tuple[_QueueFilter, dict[_ClassKey, SlotClass]]:
        key = (queue, isolation)
        found = self._filters.get(key)
        if found is None:
            found = self._filters[key] = _QueueFilter(queue, isolation, access, self._waiting), {}
        else:
            self._filters.move_to_end(key)
        return found

    def _make_room(self) -> None:
        """Drop the classes of the least recently used queues."""
        while self._classes > self._most:
            _, (_, classes) = self._filters.popitem(last=False)
            self._classes -= len(classes)
