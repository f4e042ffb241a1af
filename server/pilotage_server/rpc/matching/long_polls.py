"""Long polls: calls that wait for jobs, and their wake-ups.

Rules
-----
New jobs wake at most as many calls as there are jobs. A woken call that takes no job passes its wake-up on, so no job
waits beside an idle slot because the wrong call was woken. Calls with occupied slots are woken last: only when no free
slot has taken the job may it evict another one.

A call tries to match before it waits. Recent changes are remembered for a while, so that a call also wakes for what
happened between its attempt and its wait.

Calls of one class, whose pilots offer the same, are estimated together, once per task queue
(`MatchEstimator.upper_bound`); each call of a possible class is estimated itself when it is its turn. A negative
estimate is remembered until everything changes, because the offer of a waiting call does not change.

Everything but `JobsOnOffer`, `LongPolls.generation` and `LongPolls.announce_jobs` runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.framework.calls import idle


class JobsOnOffer:
    """Task queues whose new jobs are on offer to free slots; meanwhile these jobs evict no others.

    Safe in any thread: writers' threads add and read, the event loop adds and removes. An entry lasts at most as long
    as one attempt to match, so occupied slots may soon take jobs that no free slot wants.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: Counter[int] = Counter()
        self._pilots: dict[int, Counter[str]] = {}

    def add_pending(self, task_queue_id: int) -> None:
        """Add new jobs for which no call has been woken yet."""
        with self._lock:
            self._pending[task_queue_id] += 1

    def remove_pending(self, task_queue_id: int) -> None:
        """Remove them: their wake-ups have started."""
        with self._lock:
            self._pending[task_queue_id] -= 1
            if self._pending[task_queue_id] <= 0:
                del self._pending[task_queue_id]

    def add_pilot(self, task_queue_id: int, stamp: str) -> None:
        """Add a pilot with a free slot that is about to try for the jobs."""
        with self._lock:
            self._pilots.setdefault(task_queue_id, Counter())[stamp] += 1

    def remove_pilot(self, task_queue_id: int, stamp: str) -> None:
        """Remove the pilot: it has tried."""
        with self._lock:
            trying = self._pilots[task_queue_id]
            trying[stamp] -= 1
            if not trying[stamp]:
                del trying[stamp]
            if not trying:
                del self._pilots[task_queue_id]

    def is_offered(self, task_queue_id: int, stamp: str) -> bool:
        """Return whether other pilots are about to try for the jobs."""
        with self._lock:
            return task_queue_id in self._pending or bool(self._pilots.get(task_queue_id, Counter()).keys() - {stamp})


NO_TASK_QUEUE = 0
"""A wake-up for no particular task queue."""


class WakeUp(Protocol):
    """The reason to wake calls; it gets the result of each woken call."""

    task_queue_id: int

    def complete(self, call: WaitingCall, taken: int) -> int:
        """Record that a woken call has tried and got `taken` jobs; return how many of them belong to this wake-up."""


@dataclass(slots=True)
class JobsWakeUp:
    """Wakes calls for new jobs of one task queue: first those of `free`, later those of `occupied`.

    `untaken` counts the jobs that no call has taken. While a call with a free slot is trying, the jobs are on offer.
    """

    task_queue_id: int
    untaken: int
    free: Iterator[WaitingCall]
    occupied: Iterator[WaitingCall]
    on_offer: JobsOnOffer
    _looking: int = 0
    _looking_with_free_slots: set[WaitingCall] = field(default_factory=set)

    def wake_next(self) -> None:
        """Wake as many calls as there are jobs for which no call is trying."""
        while self._looking < self.untaken and (call := self._next_call()) is not None:
            self._looking += 1
            call.wake(self)

    def _next_call(self) -> WaitingCall | None:
        """Return the call to wake next; None = there is none, or none yet."""
        call = next(self.free, None)
        if call is not None:
            self._looking_with_free_slots.add(call)
            self.on_offer.add_pilot(self.task_queue_id, call.credential.stamp)
            return call
        return None if self._looking_with_free_slots else next(self.occupied, None)

    def complete(self, call: WaitingCall, taken: int) -> int:
        """Record that a woken call has tried and got `taken` jobs; return how many of them belong to this wake-up."""
        self._looking -= 1
        if call in self._looking_with_free_slots:
            self._looking_with_free_slots.discard(call)
            self.on_offer.remove_pilot(self.task_queue_id, call.credential.stamp)
        credited = min(taken, self.untaken)
        self.untaken -= credited
        self.wake_next()
        return credited


@dataclass(slots=True)
class WakeUpOfAll:
    """Wakes every call, a few at a time, so that other calls are served too."""

    concurrency: int
    remaining: Iterator[WaitingCall] = field(default_factory=lambda: iter(()))
    task_queue_id: int = NO_TASK_QUEUE
    _looking: int = 0

    def start(self, calls: Iterator[WaitingCall]) -> None:
        """Wake these calls; they include the rest of an earlier start."""
        self.remaining = calls
        self._wake_next()

    def _wake_next(self) -> None:
        while self._looking < self.concurrency and (call := next(self.remaining, None)) is not None:
            self._looking += 1
            call.wake(self)

    def complete(self, _call: WaitingCall, _taken: int) -> int:
        """Record that a woken call has tried, and wake the next one."""
        self._looking -= 1
        self._wake_next()
        return 0


@dataclass(eq=False, slots=True)
class WaitingCall:
    """One waiting call: what its pilot offers, and the wake-ups that it has not completed.

    The `number` is the order of arrival.
    """

    number: int
    credential: PilotCredential
    slots: Sequence[SlotOffer]
    is_open: bool = True
    _is_woken: bool = False
    _sleep: asyncio.Future[bool] | None = None
    _wake_ups: list[WakeUp] = field(default_factory=list)
    _looking_for: list[WakeUp] = field(default_factory=list)

    def wake(self, wake_up: WakeUp | None) -> None:
        """Wake the call; None = for another reason than jobs."""
        if wake_up is not None:
            self._wake_ups.append(wake_up)
        self._is_woken = True
        self._end_sleep(woken=True)

    def begin_look(self) -> None:
        """Record that the call tries to match now, for all its wake-ups."""
        self._is_woken = False
        self._looking_for += self._wake_ups
        self._wake_ups = []

    def end_look(self, taken: Mapping[int, int]) -> None:
        """Report the result to the wake-ups: jobs taken, by task queue."""
        left = Counter(taken)  # a job counts for one wake-up, not for all of its task queue
        wake_ups, self._looking_for = self._looking_for, []
        for wake_up in wake_ups:
            left[wake_up.task_queue_id] -= wake_up.complete(self, left[wake_up.task_queue_id])

    @property
    def has_wake_ups(self) -> bool:
        """Whether the call has wake-ups that it has not completed."""
        return bool(self._wake_ups or self._looking_for)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up; False = there was none in time."""
        if self._is_woken:
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

    def close(self) -> None:
        """Pass on the wake-ups that the call does not use any more."""
        self.is_open = False
        self.begin_look()
        self.end_look({})


MAX_TASK_QUEUES = 512
"""Task queues whose possible classes are cached."""

MAX_REFUSALS = 1000
"""Task queues for which a class remembers negative estimates."""

MAX_EMPTY_CLASSES = 1000
"""Classes without a waiting call that are kept, because pilots come back."""

FEW_CLASSES = 64
"""Up to this many possible classes are sorted at once; more are found one by one in the order of their first calls."""

_BEFORE_ALL = -1


class MatchEstimator(Protocol):
    """Estimates which slots of a pilot could match jobs; `operations.matching.idle_pilots` fulfils it."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        """Return the slots that one pilot has for jobs of the task queue."""

    def upper_bound(
        self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        """Return the slots that any pilot of the same class has at best."""

    def has_jobs(self, task_queue: TaskQueue) -> bool:
        """Return whether the task queue has jobs left."""

    def slot_class(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return a key that is equal for pilots of one class."""


@dataclass(eq=False, slots=True)
class _CallClass:
    """Calls whose pilots offer the same: the offer of one of them, and their numbers, ascending."""

    credential: PilotCredential
    slots: Sequence[SlotOffer]
    numbers: list[int] = field(default_factory=list)
    _refusals: dict[tuple[int, PossibleSlots], int] = field(default_factory=dict)

    def first_candidate(self, task_queue_id: int, chance: PossibleSlots) -> int | None:
        """Return the number of the first call that has no negative estimate for such jobs."""
        return _next_above(self.numbers, self._refusals.get((task_queue_id, chance), _BEFORE_ALL))

    def add_refusal(self, number: int, task_queue_id: int, chance: PossibleSlots) -> None:
        """Remember a negative estimate; only the number before which all have one is kept."""
        if self.first_candidate(task_queue_id, chance) == number:
            if len(self._refusals) >= MAX_REFUSALS:
                self._refusals.clear()
            self._refusals[task_queue_id, chance] = number

    def clear_refusals(self) -> None:
        self._refusals.clear()


@dataclass(slots=True)
class _PossibleClasses:
    """Which of the first `examined` classes could match jobs of one task queue."""

    examined: int = 0
    by_slots: dict[PossibleSlots, set[_CallClass]] = field(
        default_factory=lambda: {slots: set() for slots in PossibleSlots}
    )

    def add(self, call_class: _CallClass, best: PossibleSlots) -> None:
        for chance in best:
            self.by_slots[chance].add(call_class)


class WaitingCalls:
    """All waiting calls; iteration gives them in the order of arrival."""

    def __init__(self, estimator: MatchEstimator) -> None:
        self._estimator = estimator
        self._calls: dict[int, WaitingCall] = {}
        self._class_of: dict[int, _CallClass] = {}
        self._by_slot_class: dict[Hashable, _CallClass] = {}
        self._classes: list[_CallClass] = []
        self._firsts: list[int] = []  # the number of each class's first call, ascending
        self._cache: OrderedDict[int, _PossibleClasses] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[WaitingCall]:
        return iter(tuple(self._calls.values()))

    def add(self, call: WaitingCall) -> None:
        """Add a call, whose number is the highest so far."""
        slot_class = self._estimator.slot_class(call.credential, call.slots)
        call_class = self._by_slot_class.get(slot_class)
        if call_class is None:
            self._drop_empty_classes()
            call_class = self._by_slot_class[slot_class] = _CallClass(call.credential, call.slots)
            self._classes.append(call_class)
        if not call_class.numbers:
            self._firsts.append(call.number)
        call_class.numbers.append(call.number)
        self._class_of[call.number] = call_class
        self._calls[call.number] = call

    def remove(self, call: WaitingCall) -> None:
        """Remove a call."""
        del self._calls[call.number]
        numbers = self._class_of.pop(call.number).numbers
        was_first = numbers[0] == call.number
        _remove_sorted(numbers, call.number)
        if was_first:
            _remove_sorted(self._firsts, call.number)
            if numbers:
                insort(self._firsts, numbers[0])

    def _drop_empty_classes(self) -> None:
        if len(self._classes) >= 2 * len(self._calls) + MAX_EMPTY_CLASSES:
            self._by_slot_class = {
                key: call_class for key, call_class in self._by_slot_class.items() if call_class.numbers
            }
            self._classes = list(self._by_slot_class.values())
            self._cache.clear()

    def candidates(self, task_queue: TaskQueue, chance: PossibleSlots) -> Iterator[WaitingCall]:
        """Yield the calls that could have such slots, in the order of arrival; calls may come and go meanwhile."""
        classes = self._in_order(self._possible_classes(task_queue, chance))
        following = next(classes, None)
        queue: list[tuple[int, _CallClass]] = []
        while queue or following is not None:
            while following is not None and not (queue and queue[0][0] < following[0]):
                first = following[1].first_candidate(task_queue.id, chance)
                if first is not None:
                    heapq.heappush(queue, (first, following[1]))
                following = next(classes, None)
            if queue:
                number, call_class = heapq.heappop(queue)
                after = _next_above(call_class.numbers, number)
                if after is not None:
                    heapq.heappush(queue, (after, call_class))
                if number in self._calls:
                    yield self._calls[number]

    def _in_order(self, classes: Set[_CallClass]) -> Iterator[tuple[int, _CallClass]]:
        """Yield classes with the number of their first call, ascending; of many classes no more than needed."""
        if len(classes) <= FEW_CLASSES:
            yield from sorted((call_class.numbers[0], call_class) for call_class in classes if call_class.numbers)
            return
        seen: set[_CallClass] = set()
        first = _next_above(self._firsts, _BEFORE_ALL)
        while first is not None:
            call_class = self._class_of[first]
            if call_class in classes and call_class not in seen:  # its first call may be another one by now
                seen.add(call_class)
                yield first, call_class
            first = _next_above(self._firsts, first)

    def _possible_classes(self, task_queue: TaskQueue, chance: PossibleSlots) -> Set[_CallClass]:
        possible = self._cache.setdefault(task_queue.id, _PossibleClasses())
        self._cache.move_to_end(task_queue.id)
        if len(self._cache) > MAX_TASK_QUEUES:
            self._cache.popitem(last=False)
        for call_class in self._classes[possible.examined :]:
            possible.add(call_class, self._estimator.upper_bound(task_queue, call_class.credential, call_class.slots))
        possible.examined = len(self._classes)
        return possible.by_slots[chance]

    def could_match(self, call: WaitingCall, task_queue: TaskQueue, chance: PossibleSlots) -> bool:
        """Return whether the call has such slots for the jobs; a negative estimate is remembered."""
        if chance in self._estimator.of(task_queue, call.credential, call.slots):
            return True
        self._class_of[call.number].add_refusal(call.number, task_queue.id, chance)
        return False

    def could_match_any(self, task_queue: TaskQueue, call: WaitingCall) -> bool:
        """Return whether the task queue has jobs left and the call has any slot for them."""
        if not self._estimator.has_jobs(task_queue):
            return False
        return self._estimator.of(task_queue, call.credential, call.slots) is not PossibleSlots.NONE

    def clear_cache(self) -> None:
        """Forget all estimates."""
        self._cache.clear()
        for call_class in self._classes:
            call_class.clear_refusals()


def _next_above(numbers: list[int], number: int) -> int | None:
    """Return the first of ascending numbers that is greater; None = there is none."""
    index = bisect_right(numbers, number)
    return numbers[index] if index < len(numbers) else None


def _remove_sorted(numbers: list[int], number: int) -> None:
    del numbers[bisect_left(numbers, number)]


MAX_CONCURRENT_LOOKS = 32
"""Calls that try to match at the same time when all are woken."""

MAX_RECENT_CHANGES = 64
"""Recent changes that are remembered; a call that may have missed more tries to match once more."""

Concerns = Callable[[WaitingCall], bool]
"""Whether a change is a reason for a call to try to match."""


class LongPolls:
    """All waiting calls."""

    def __init__(self, estimator: MatchEstimator) -> None:
        self._estimator = estimator
        self._on_offer = JobsOnOffer()
        self._calls = WaitingCalls(estimator)
        self._by_pilot: defaultdict[str, set[WaitingCall]] = defaultdict(set)
        self._numbers = itertools.count()
        self._wake_up_of_all = WakeUpOfAll(MAX_CONCURRENT_LOOKS)
        self._recent_changes: deque[Concerns] = deque(maxlen=MAX_RECENT_CHANGES)
        self.generation = 0
        """The number of changes so far. A call reads it, in any thread, before it tries to match."""
        self.is_open = True

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def waiting(
        self, credential: PilotCredential, slots: Sequence[SlotOffer], generation: int
    ) -> Iterator[WaitingCall]:
        """Register a call for the time of the block.

        The call is woken at once by a change since `generation` that concerns it.
        """
        call = WaitingCall(next(self._numbers), credential, slots)
        self._calls.add(call)
        self._by_pilot[credential.stamp].add(call)
        try:
            if self._has_missed(call, generation):
                call.wake(None)
            yield call
        finally:
            self._remove(call)
            call.close()

    async def wait(self, call: WaitingCall, timeout_s: float) -> bool:
        """Wait for a reason to try again; False = there was none in time, or the server shuts down."""
        return self.is_open and await call.wait(timeout_s) and self.is_open

    def _has_missed(self, call: WaitingCall, since: int) -> bool:
        missed = self.generation - since
        if missed > len(self._recent_changes):
            return True
        return any(concerns(call) for concerns in itertools.islice(reversed(self._recent_changes), missed))

    def _record(self, concerns: Concerns) -> None:
        self._recent_changes.append(concerns)
        self.generation += 1

    def _remove(self, call: WaitingCall) -> None:
        self._calls.remove(call)
        of_pilot = self._by_pilot[call.credential.stamp]
        of_pilot.remove(call)
        if not of_pilot:
            del self._by_pilot[call.credential.stamp]

    def announce_jobs(self, task_queue: TaskQueue, _count: int) -> None:
        """Announce, in any thread, that `wake_for_jobs` will follow."""
        self._on_offer.add_pending(task_queue.id)

    def is_offered(self, task_queue_id: int, stamp: str) -> bool:
        """Return whether free slots of other pilots are about to be offered new jobs of the task queue."""
        return self._on_offer.is_offered(task_queue_id, stamp)

    def wake_for_jobs(self, task_queue: TaskQueue, count: int) -> None:
        """Wake up to `count` calls that could take jobs of the task queue."""
        self._record(partial(self._calls.could_match_any, task_queue))
        while_left = partial(itertools.takewhile, lambda _call: self._estimator.has_jobs(task_queue))
        free, occupied = self._with_free_slots(task_queue), self._with_occupied_slots(task_queue)
        JobsWakeUp(task_queue.id, count, while_left(free), while_left(occupied), self._on_offer).wake_next()
        self._on_offer.remove_pending(task_queue.id)

    def _with_free_slots(self, task_queue: TaskQueue) -> Iterator[WaitingCall]:
        """Yield the calls with free slots for the jobs, those without another wake-up first."""
        busy: list[WaitingCall] = []
        for call in self._calls.candidates(task_queue, PossibleSlots.FREE_SLOT):
            if call.has_wake_ups:
                busy.append(call)
            elif self._calls.could_match(call, task_queue, PossibleSlots.FREE_SLOT):
                yield call
        for call in busy:
            if call.is_open and self._calls.could_match(call, task_queue, PossibleSlots.FREE_SLOT):
                yield call

    def _with_occupied_slots(self, task_queue: TaskQueue) -> Iterator[WaitingCall]:
        """Yield the calls that would have to evict a job."""
        for call in self._calls.candidates(task_queue, PossibleSlots.OCCUPIED_SLOT):
            if self._calls.could_match(call, task_queue, PossibleSlots.OCCUPIED_SLOT):
                yield call
        self._record(partial(self._calls.could_match_any, task_queue))  # for calls that tried meanwhile

    def wake_pilot(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        self._record(lambda call: call.credential.stamp == stamp)
        for call in self._by_pilot.get(stamp, ()):
            call.wake(None)

    def wake_all(self) -> None:
        """Wake all calls, a few at a time: any job may fit anywhere now."""
        self._record(lambda _: True)
        self._calls.clear_cache()
        self._wake_up_of_all.start(call for call in self._calls if call.is_open)

    def close(self) -> None:
        """End all waits."""
        self.is_open = False
        for call in self._calls:
            call.wake(None)
