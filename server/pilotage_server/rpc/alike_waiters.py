"""Waiters by what they offer, so that only those are asked about new jobs that might take them.

Rules
-----
Waiters of one kind are asked together, once for each task queue (`Chances.at_best`); who is of a kind that might take
its jobs is asked for himself when it is his turn. That somebody would not is remembered for as long as he waits: what
he offers does not change. All of it is forgotten when what may go where has changed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence, Set
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

FEW_KINDS = 64
"""So many kinds that might take a job are looked through at once; of more, those that are first in the order."""

_BEFORE_ALL = -1


class Chances(Protocol):
    """Tells which kinds of slots pilots have for jobs of a task queue; see `operations.chances`."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what one pilot has."""

    def at_best(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what it, and all that are alike, have at best."""

    def are_left(self, task_queue: TaskQueue) -> bool:
        """Whether any jobs of the task queue are left to be had."""

    def alike(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return what is equal for pilots that are alike."""


@dataclass(eq=False, slots=True)
class _Kind:
    """Waiters that are alike: what one of them offers, and their numbers, ascending."""

    credential: PilotCredential
    slots: Sequence[SlotOffer]
    numbers: list[int] = field(default_factory=list)
    _refused: dict[tuple[int, Chance], int] = field(default_factory=dict)

    def first_to_ask(self, task_queue_id: int, chance: Chance) -> int | None:
        """Return the number of the first of whom it is not known that he would not take such jobs."""
        return _next(self.numbers, self._refused.get((task_queue_id, chance), _BEFORE_ALL))

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
    kinds: dict[Chance, set[_Kind]] = field(default_factory=lambda: {kind: set() for kind in Chance})

    def examine(self, kind: _Kind, best: Chance) -> None:
        for chance in best:
            self.kinds[chance].add(kind)


class AlikeWaiters:
    """All waiters; iterating gives them the longest waiting first."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._waiters: dict[int, Waiter] = {}
        self._kind_of: dict[int, _Kind] = {}
        self._by_likeness: dict[Hashable, _Kind] = {}
        self._kinds: list[_Kind] = []
        self._firsts: list[int] = []  # the numbers of the longest waiting of each kind, ascending
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
        if not kind.numbers:
            self._firsts.append(waiter.number)
        kind.numbers.append(waiter.number)
        self._kind_of[waiter.number] = kind
        self._waiters[waiter.number] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        del self._waiters[waiter.number]
        numbers = self._kind_of.pop(waiter.number).numbers
        was_first = numbers[0] == waiter.number
        _take_out(numbers, waiter.number)
        if was_first:
            _take_out(self._firsts, waiter.number)
            if numbers:
                insort(self._firsts, numbers[0])

    def _drop_spare_kinds(self) -> None:
        if len(self._kinds) >= 2 * len(self._waiters) + SPARE_KINDS:
            self._by_likeness = {key: kind for key, kind in self._by_likeness.items() if kind.numbers}
            self._kinds = list(self._by_likeness.values())
            self._known.clear()

    def worth_asking(self, task_queue: TaskQueue, chance: Chance) -> Iterator[Waiter]:
        """Yield those that might have this chance, the longest waiting first; they may come and go meanwhile."""
        kinds = self._in_order(self._might_take(task_queue, chance))
        following = next(kinds, None)
        turns: list[tuple[int, _Kind]] = []
        while turns or following is not None:
            while following is not None and not (turns and turns[0][0] < following[0]):
                first = following[1].first_to_ask(task_queue.id, chance)
                if first is not None:
                    heapq.heappush(turns, (first, following[1]))
                following = next(kinds, None)
            if turns:
                number, kind = heapq.heappop(turns)
                after = _next(kind.numbers, number)
                if after is not None:
                    heapq.heappush(turns, (after, kind))
                if number in self._waiters:
                    yield self._waiters[number]

    def _in_order(self, kinds: Set[_Kind]) -> Iterator[tuple[int, _Kind]]:
        """Yield kinds with the number of their longest waiting, ascending: of many no more than are asked for."""
        if len(kinds) <= FEW_KINDS:
            yield from sorted((kind.numbers[0], kind) for kind in kinds if kind.numbers)
            return
        seen: set[_Kind] = set()
        first = _next(self._firsts, _BEFORE_ALL)
        while first is not None:
            kind = self._kind_of[first]
            if kind in kinds and kind not in seen:  # another one of it may be the first by now
                seen.add(kind)
                yield first, kind
            first = _next(self._firsts, first)

    def _might_take(self, task_queue: TaskQueue, chance: Chance) -> Set[_Kind]:
        known = self._known.setdefault(task_queue.id, _Known())
        self._known.move_to_end(task_queue.id)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        for kind in self._kinds[known.examined :]:
            known.examine(kind, self._chances.at_best(task_queue, kind.credential, kind.slots))
        known.examined = len(self._kinds)
        return known.kinds[chance]

    def has_chance(self, waiter: Waiter, task_queue: TaskQueue, chance: Chance) -> bool:
        """Whether a waiter has this chance; that it has not is remembered."""
        if chance in self._chances.of(task_queue, waiter.credential, waiter.slots):
            return True
        self._kind_of[waiter.number].refuses(waiter.number, task_queue.id, chance)
        return False

    def has_any_chance(self, task_queue: TaskQueue, waiter: Waiter) -> bool:
        """Whether a waiter has a chance of any kind for jobs that are left."""
        if not self._chances.are_left(task_queue):
            return False
        return self._chances.of(task_queue, waiter.credential, waiter.slots) is not Chance.NONE

    def forget_chances(self) -> None:
        """Take note that what may go where has changed."""
        self._known.clear()
        for kind in self._kinds:
            kind.forget()


def _next(numbers: list[int], number: int) -> int | None:
    """Return the first of ascending numbers that is greater; None = there is none."""
    place = bisect_right(numbers, number)
    return numbers[place] if place < len(numbers) else None


def _take_out(numbers: list[int], number: int) -> None:
    del numbers[bisect_left(numbers, number)]
