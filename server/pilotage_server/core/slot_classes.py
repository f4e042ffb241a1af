"""Slots that may take the same task queues, as far as doors and sizes are concerned, and which task queues these are.

Rules
-----
A class is what a request says of a slot in few steps, so that nearly all requests find theirs made already. Its set
may hold more than can go: whether a task queue can go to a batch queue is asked of `Reach` when its turn comes, once
a batch queue. Task queues that come, and mappings that change, are taken in when a class is asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from pilotage.folding import folded_set
from pilotage.resource_tree import QueueId
from pilotage_server.core.place_sets import EVERYWHERE, set_of
from pilotage_server.core.reach import Reach
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.trait_sets import SizeClass
from pilotage_server.core.waiting import WaitingIndex
from pilotage_server.core.waiting_line import Line

MOST_CLASSES = 8192

_MOST_REFUSED = 256
"""So many task queues may be refused at a door one by one; then those that can go are looked up, all at once."""


class _Door:
    """The task queues that can go to a batch queue: those `maybe`, of which some have been asked.

    At first that is all of them. Where few are refused it stays so: after a new tree, when every door is new, nobody
    waits until all that can go has been looked up. `version` is another after each change of what waits or may go.
    """

    __slots__ = ("_asked", "_reach", "_refused", "_seen", "_waiting", "maybe", "queue", "version")

    def __init__(self, queue: QueueId, reach: Reach, waiting: WaitingIndex) -> None:
        self.queue = queue
        self._reach = reach
        self._waiting = waiting
        self._seen = self._now()
        self._start_anew()
        self.version = 0

    def admits(self, line: Line) -> bool:
        """Whether a task queue can go; asked once."""
        if not self._asked >> line.place & 1:
            self._asked |= 1 << line.place
            if not self._reach.can_go(line.task_queue, self.queue):
                self._refuse(line)
        return bool(self.maybe >> line.place & 1)

    def agree(self) -> None:
        """Take in what has changed."""
        seen = self._now()
        if seen == self._seen:
            return
        places = self._waiting.places.changes.since(self._seen[0])
        pools = self._reach.mappings.changes.since(self._seen[1])
        if places is None or pools is None:
            self._start_anew()
        else:
            self._ask_again(set_of(places) | self._of_pools(pools))
        self._seen = seen
        self.version += 1

    def _start_anew(self) -> None:
        self._asked = self._refused = 0
        self.maybe = EVERYWHERE

    def _refuse(self, line: Line) -> None:
        self.maybe &= ~(1 << line.place)
        self._refused += 1
        if self._refused == _MOST_REFUSED:
            self.maybe &= self._of_pools(("", *self._reach.mappings.pools(self.queue)))

    def _ask_again(self, places: int) -> None:
        self.maybe |= places
        self._asked &= ~places

    def _of_pools(self, pools: Iterable[str]) -> int:
        return set_of(place for pool_id in pools for place in self._waiting.places_of_pool(pool_id))

    def _now(self) -> tuple[int, int]:
        return self._waiting.places.changes.now, self._reach.mappings.changes.now


class _Key(NamedTuple):
    """What tells slots at one door apart."""

    vos: tuple[str, ...]
    size: SizeClass
    declined: frozenset[int]


class SlotClass:
    """Slots that may take the same task queues.

    `places` is the set of those that may fit, `unsure` that of those whose times have to be looked at. `sure` are
    those that go wherever nothing but limits is to be asked: who has found that out has put them there.
    """

    __slots__ = ("_door", "_key", "_version", "_waiting", "places", "sure", "unsure")

    def __init__(self, key: _Key, door: _Door, waiting: WaitingIndex) -> None:
        self.places = 0
        self.unsure = 0
        self.sure = 0
        self._key = key
        self._door = door
        self._waiting = waiting
        self._version = -1

    def agree(self) -> None:
        """Take in what has changed."""
        self._door.agree()
        if self._version != self._door.version:
            self._version = self._door.version
            self.sure = 0
            self.places = self._door.maybe & self._of_vos() & self._waiting.traits.fitting(self._key.size)
            self.places &= ~self._declined()
            self.unsure = self._waiting.traits.unsure(self._key.size)

    def admits(self, line: Line) -> bool:
        """Whether a task queue of `places` can go to the batch queue; if not, it is among them no longer."""
        if self._door.admits(line):
            return True
        self.places &= self._door.maybe
        return False

    def _of_vos(self) -> int:
        found = 0 if self._key.vos else EVERYWHERE
        for vo in folded_set(self._key.vos):
            found |= self._waiting.traits.of_vo(vo)
        return found

    def _declined(self) -> int:
        lines = (self._waiting.line(task_queue_id) for task_queue_id in self._key.declined)
        return set_of(line.place for line in lines if line is not None)


class SlotClasses:
    """The classes of the slots that were offered lately."""

    def __init__(self, waiting: WaitingIndex, end_margin: timedelta, most: int = MOST_CLASSES) -> None:
        self._waiting = waiting
        self._end_margin = end_margin
        self._most = most
        self._reach: Reach | None = None
        self._doors: OrderedDict[QueueId, tuple[_Door, dict[_Key, SlotClass]]] = OrderedDict()
        self._classes = 0

    def of(self, slot: SlotOffer, queue: QueueId, vos: tuple[str, ...], reach: Reach) -> SlotClass:
        """Return the class of a slot of a pilot that is at the batch queue and serves the VOs, none = all."""
        if reach is not self._reach:
            self._reach = reach
            self._doors.clear()
            self._classes = 0
        door, classes = self._door(queue, reach)
        key = _Key(vos, self._waiting.traits.size_class(slot, self._end_margin), slot.declined_task_queues)
        found = classes.get(key)
        if found is None:
            found = classes[key] = SlotClass(key, door, self._waiting)
            self._classes += 1
            self._make_room()
        found.agree()
        return found

    def _door(self, queue: QueueId, reach: Reach) -> tuple[_Door, dict[_Key, SlotClass]]:
        found = self._doors.get(queue)
        if found is None:
            found = self._doors[queue] = _Door(queue, reach, self._waiting), {}
        else:
            self._doors.move_to_end(queue)
        return found

    def _make_room(self) -> None:
        """Forget the classes of the batch queues that were asked for least lately."""
        while self._classes > self._most:
            _, (_, classes) = self._doors.popitem(last=False)
            self._classes -= len(classes)
