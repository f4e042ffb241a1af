"""Waiters by what they offer, so that only those are asked about new jobs that might take them.

Rules
-----
Waiters of one kind are asked together, once for each task queue (`Chances.at_best`); who is of a kind that might take
its jobs is asked for himself when it is his turn. That somebody would not is remembered for as long as he waits: what
he offers does not change. All of it is forgotten when what may go where has changed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.chances import Chance
from pilotage_server.rpc.waiters import Waiter

MOST_REMEMBERED = 512
"""Of so many task queues it is remembered which kinds might take their jobs."""

MOST_REFUSED = 1000
"""Of so many task queues it is remembered who of one kind would not take their jobs."""

SPARE_KINDS = 1000
"""So many kinds that nobody is of are kept, for pilots that come back."""

_BEFORE_ALL = -1


class Chances(Protocol):
    """Tells which kinds of slots pilots have for jobs of a task queue; see `operations.chances`."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what one pilot has."""

    def at_best(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what it, and all that are alike, have at best."""

    def alike(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return what is equal for pilots that are alike."""


@dataclass(eq=False, slots=True)
class _Kind:
    """Waiters that are alike: what one of them offers, and their numbers, ascending."""

    credential: PilotCredential
    slots: Sequence[SlotOffer]
    numbers: list[int] = field(default_factory=list)
    _refused: dict[tuple[int, Chance], int] = field(default_factory=dict)

    def first_after(self, number: int) -> int | None:
        place = bisect_right(self.numbers, number)
        return self.numbers[place] if place < len(self.numbers) else None

    def first_to_ask(self, task_queue_id: int, chance: Chance) -> int | None:
        """Return the number of the first of whom it is not known that he would not take such jobs."""
        return self.first_after(self._refused.get((task_queue_id, chance), _BEFORE_ALL))

    def refuses(self, number: int, task_queue_id: int, chance: Chance) -> None:
        """Take note that one would not; it is of use once all before him would not either."""
        if self.first_to_ask(task_queue_id, chance) == number:
            if len(self._refused) >= MOST_REFUSED:
                self._refused.clear()
            self._refused[task_queue_id, chance] = number

    def forget(self) -> None:
        self._refused.clear()


@dataclass(slots=True)
class _Known:
    """Which kinds might take the jobs of one task queue, of the first `examined` ones."""

    examined: int = 0
    kinds: list[tuple[_Kind, Chance]] = field(default_factory=list)


class AlikeWaiters:
    """All waiters; iterating gives them the longest waiting first."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._waiters: dict[int, Waiter] = {}
        self._kind_of: dict[int, _Kind] = {}
        self._by_likeness: dict[Hashable, _Kind] = {}
        self._kinds: list[_Kind] = []
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(tuple(self._waiters.values()))

    def add(self, waiter: Waiter) -> None:
        """Enter a waiter, whose number is the highest so far."""
        likeness = self._chances.alike(waiter.credential, waiter.slots)
        kind = self._by_likeness.get(likeness)
        if kind is None:
            self._drop_spare_kinds()
            kind = self._by_likeness[likeness] = _Kind(waiter.credential, waiter.slots)
            self._kinds.append(kind)
        kind.numbers.append(waiter.number)
        self._kind_of[waiter.number] = kind
        self._waiters[waiter.number] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        del self._waiters[waiter.number]
        numbers = self._kind_of.pop(waiter.number).numbers
        del numbers[bisect_left(numbers, waiter.number)]

    def _drop_spare_kinds(self) -> None:
        if len(self._kinds) >= 2 * len(self._waiters) + SPARE_KINDS:
            self._by_likeness = {key: kind for key, kind in self._by_likeness.items() if kind.numbers}
            self._kinds = list(self._by_likeness.values())
            self._known.clear()

    def worth_asking(self, task_queue: TaskQueue, chance: Chance) -> Iterator[Waiter]:
        """Yield those that might have this chance, the longest waiting first; they may come and go meanwhile."""
        turns = []
        for place, (kind, best) in enumerate(self._might_take(task_queue)):
            first = kind.first_to_ask(task_queue.id, chance) if chance in best else None
            if first is not None:
                turns.append((first, place, kind))
        heapq.heapify(turns)
        while turns:
            number, place, kind = turns[0]
            following = kind.first_after(number)
            if following is None:
                heapq.heappop(turns)
            else:
                heapq.heapreplace(turns, (following, place, kind))
            if number in self._waiters:
                yield self._waiters[number]

    def _might_take(self, task_queue: TaskQueue) -> list[tuple[_Kind, Chance]]:
        known = self._known.setdefault(task_queue.id, _Known())
        self._known.move_to_end(task_queue.id)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        for kind in self._kinds[known.examined :]:
            best = self._chances.at_best(task_queue, kind.credential, kind.slots)
            if best:
                known.kinds.append((kind, best))
        known.examined = len(self._kinds)
        return known.kinds

    def has_chance(self, waiter: Waiter, task_queue: TaskQueue, chance: Chance) -> bool:
        """Whether a waiter has this chance; that it has not is remembered."""
        if chance in self._chances.of(task_queue, waiter.credential, waiter.slots):
            return True
        self._kind_of[waiter.number].refuses(waiter.number, task_queue.id, chance)
        return False

    def forget_chances(self) -> None:
        """Take note that what may go where has changed."""
        self._known.clear()
        for kind in self._kinds:
            kind.forget()
