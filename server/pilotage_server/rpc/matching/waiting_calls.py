"""Calls that wait for jobs: their sleep, and which of them could take jobs of a task queue.

Calls whose pilots offer the same form a class. A class is estimated once for each task queue
(`MatchEstimator.upper_bound`); each call of a possible class is estimated itself when it is its turn. Estimates are
kept until everything changes, because the offer of a waiting call does not change.

Everything here runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.framework.calls import idle


class MatchEstimator(Protocol):
    """Estimates which slots of a pilot could match jobs; `operations.matching.idle_pilots` fulfils it."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        """Return the slots that one pilot has for jobs of the task queue."""

    def upper_bound(
        self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        """Return the slots that any pilot of the same class has at best."""

    def jobs_left(self, task_queue: TaskQueue) -> int:
        """Return the number of jobs that a look for the task queue may get."""

    def slot_class(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return a key that is equal for pilots of one class."""


@dataclass(eq=False, slots=True)
class WaitingCall:
    """One waiting call: what its pilot offers, and when it has looked for jobs.

    The `number` is the order of arrival. `looked` is the generation of the long polls when its last look began.
    `searches` are the keys of the searches in which it looks, or has to look.
    """

    number: int
    credential: PilotCredential
    slots: Sequence[SlotOffer]
    looked: float
    is_looking: bool = False
    has_to_look: bool = False
    searches: set[int] = field(default_factory=set)
    _sleep: asyncio.Future[bool] | None = None

    def wake(self) -> None:
        """Let the call look, after its present look if it has begun one."""
        self.has_to_look = True
        self._end_sleep(woken=True)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up; False = there was none in time."""
        if self.has_to_look:
            return True
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(timeout_s, partial(self._end_sleep, woken=False))
        try:
            with idle():
                return await self._sleep
        finally:
            timer.cancel()
            self._sleep = None

    def _end_sleep(self, *, woken: bool) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(woken)


MAX_TASK_QUEUES = 512
"""Task queues whose estimates are kept."""

MAX_EMPTY_CLASSES = 1000
"""Classes without a waiting call that are kept, because pilots come back."""


@dataclass(eq=False, slots=True)
class _CallClass:
    """Calls whose pilots offer the same: the offer of one of them, and their numbers, ascending."""

    credential: PilotCredential
    slots: Sequence[SlotOffer]
    numbers: list[int] = field(default_factory=list)

    def next_above(self, number: int) -> int | None:
        """Return the number of the first call above this one; None = there is none."""
        index = bisect_right(self.numbers, number)
        return self.numbers[index] if index < len(self.numbers) else None


@dataclass(slots=True)
class _Candidates:
    """The classes that have one kind of slot for jobs of a task queue; no call up to the number `refused` has it."""

    classes: list[_CallClass] = field(default_factory=list)
    refused: int = -1


@dataclass(slots=True)
class _Estimates:
    """The candidates for jobs of one task queue by kind of slot, among so many `examined` classes."""

    examined: int = 0
    by_kind: dict[PossibleSlots, _Candidates] = field(
        default_factory=lambda: {kind: _Candidates() for kind in PossibleSlots}
    )


class WaitingCalls:
    """All waiting calls; iteration gives them in the order of arrival."""

    def __init__(self, estimator: MatchEstimator) -> None:
        self._estimator = estimator
        self._calls: dict[int, WaitingCall] = {}
        self._class_of: dict[int, _CallClass] = {}
        self._classes: dict[Hashable, _CallClass] = {}
        self._estimates: OrderedDict[int, _Estimates] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[WaitingCall]:
        return iter(tuple(self._calls.values()))

    def add(self, call: WaitingCall) -> None:
        """Add a call, whose number is the highest so far."""
        slot_class = self._estimator.slot_class(call.credential, call.slots)
        call_class = self._classes.get(slot_class)
        if call_class is None:
            self._drop_empty_classes()
            call_class = self._classes[slot_class] = _CallClass(call.credential, call.slots)
        call_class.numbers.append(call.number)
        self._class_of[call.number] = call_class
        self._calls[call.number] = call

    def remove(self, call: WaitingCall) -> None:
        """Remove a call."""
        del self._calls[call.number]
        numbers = self._class_of.pop(call.number).numbers
        del numbers[bisect_left(numbers, call.number)]

    def with_slots(self, task_queue: TaskQueue, kind: PossibleSlots) -> Iterator[WaitingCall]:
        """Yield the calls that could have such slots, in the order of arrival; calls may come and go meanwhile.

        Calls that look already, or have to, come last, and are not estimated before.
        """
        candidates = self._estimates_of(task_queue).by_kind[kind]
        heads = [
            (each.numbers[index], each)
            for each in candidates.classes
            if (index := bisect_right(each.numbers, candidates.refused)) < len(each.numbers)
        ]
        heapq.heapify(heads)
        have_all_refused = True
        busy: list[WaitingCall] = []
        while heads:
            number, call_class = heads[0]
            call = self._calls.get(number)
            if call is not None and (call.is_looking or call.has_to_look):
                have_all_refused = False
                busy.append(call)
            elif call is not None and kind in self._estimator.of(task_queue, call.credential, call.slots):
                have_all_refused = False
                yield call
            elif have_all_refused:
                candidates.refused = number
            following = call_class.next_above(number)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, call_class))
        for call in busy:
            if kind in self._estimator.of(task_queue, call.credential, call.slots):
                yield call

    def _estimates_of(self, task_queue: TaskQueue) -> _Estimates:
        estimates = self._estimates.setdefault(task_queue.id, _Estimates())
        self._estimates.move_to_end(task_queue.id)
        if len(self._estimates) > MAX_TASK_QUEUES:
            self._estimates.popitem(last=False)
        if estimates.examined < len(self._classes):
            for each in islice(self._classes.values(), estimates.examined, None):
                for kind in self._estimator.upper_bound(task_queue, each.credential, each.slots):
                    estimates.by_kind[kind].classes.append(each)
            estimates.examined = len(self._classes)
        return estimates

    def clear_estimates(self) -> None:
        """Forget all estimates."""
        self._estimates.clear()

    def _drop_empty_classes(self) -> None:
        if len(self._classes) >= 2 * len(self._calls) + MAX_EMPTY_CLASSES:
            self._classes = {key: call_class for key, call_class in self._classes.items() if call_class.numbers}
            self._estimates.clear()
