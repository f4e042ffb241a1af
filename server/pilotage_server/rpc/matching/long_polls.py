"""Long polls: the wake-ups of calls that wait for jobs.

Rules
-----
A look is a call's try to match. Each change increments the generation, and each call knows the generation at its last
look: a change that is later may be a reason to look again.

New jobs of a task queue start a search, in which as many calls look at a time as there are jobs that none of them has
taken. A call that takes none passes its turn on to the next. First come the calls with free slots in the order of
arrival, those that look for other jobs already at their end. Only when all of these have looked, it is the turn of
occupied slots, and until then the jobs evict no others. More jobs of the task queue start its search from the first
call again. A change that concerns all calls, such as a new resource tree, starts a search in which all of them look.

A call looks before it waits. Recent changes are remembered, so that it looks again if one of them concerns it.

Everything but `FreeSlotsFirst`, `LongPolls.generation`, `LongPolls.announce_jobs` and `LongPolls.is_offered` runs in
the event loop's thread.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.matching.waiting_calls import MatchEstimator, WaitingCall, WaitingCalls

MAX_CONCURRENT_LOOKS = 32
"""Calls that look at the same time when all have to."""

MAX_RECENT_CHANGES = 64
"""Recent changes that are remembered; a call that may have missed more looks once more."""

ALL_TASK_QUEUES = 0
"""In place of the id of a task queue: the search of all calls for any jobs."""

_CLOSED = math.inf
"""In place of the generation at the last look: the call looks no more."""

Concerns = Callable[[WaitingCall], bool]
"""Whether a change is a reason for a call to look."""


class FreeSlotsFirst:
    """Task queues whose new jobs are offered to free slots first and evict no others meanwhile; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announcements: Counter[int] = Counter()

    def add(self, task_queue_id: int) -> None:
        """Add an announcement of new jobs."""
        with self._lock:
            self._announcements[task_queue_id] += 1

    def remove(self, task_queue_id: int, announcements: int) -> None:
        """Remove so many announcements: the free slots have looked."""
        with self._lock:
            self._announcements[task_queue_id] -= announcements
            if not self._announcements[task_queue_id]:
                del self._announcements[task_queue_id]

    def __contains__(self, task_queue_id: int) -> bool:
        with self._lock:
            return task_queue_id in self._announcements


@dataclass(eq=False, slots=True)
class Search:
    """The looks of calls for new jobs of one task queue, which came at the generation `since`, or for any jobs.

    `calls` are those whose turn comes next; None among them = not before all looks of this search have ended. At most
    `untaken` calls look at a time; `looking` = how many do. `announcements` = how many are among `FreeSlotsFirst`.
    """

    task_queue_id: int
    has_jobs: Callable[[], bool]
    untaken: int = 0
    since: int = 0
    calls: Iterator[WaitingCall | None] = field(default_factory=lambda: iter(()))
    looking: int = 0
    announcements: int = 0


class LongPolls:
    """All waiting calls."""

    def __init__(self, estimator: MatchEstimator) -> None:
        self._estimator = estimator
        self._free_slots_first = FreeSlotsFirst()
        self._calls = WaitingCalls(estimator)
        self._by_pilot: defaultdict[str, set[WaitingCall]] = defaultdict(set)
        self._numbers = itertools.count()
        self._searches: dict[int, Search] = {}
        self._recent_changes: deque[Concerns] = deque(maxlen=MAX_RECENT_CHANGES)
        self.generation = 0
        """The number of changes so far. A call reads it, in any thread, before its first look."""
        self.is_open = True

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def waiting(
        self, credential: PilotCredential, slots: Sequence[SlotOffer], generation: int
    ) -> Iterator[WaitingCall]:
        """Register a call, which has looked at `generation`, for the time of the block.

        It is woken at once by a later change that concerns it.
        """
        call = WaitingCall(next(self._numbers), credential, slots, generation)
        self._calls.add(call)
        self._by_pilot[credential.stamp].add(call)
        try:
            if self._has_missed(call, generation):
                call.wake(self.generation)
            yield call
        finally:
            self._remove(call)
            call.looked = _CLOSED
            self.end_look(call, {})

    def _has_missed(self, call: WaitingCall, since: int) -> bool:
        missed = self.generation - since
        if missed > len(self._recent_changes):
            return True
        return any(concerns(call) for concerns in itertools.islice(reversed(self._recent_changes), missed))

    def _remove(self, call: WaitingCall) -> None:
        self._calls.remove(call)
        of_pilot = self._by_pilot[call.credential.stamp]
        of_pilot.remove(call)
        if not of_pilot:
            del self._by_pilot[call.credential.stamp]

    async def wait(self, call: WaitingCall, timeout_s: float) -> bool:
        """Wait for a reason to look; False = there was none in time, or the server shuts down."""
        return self.is_open and await call.wait(timeout_s) and self.is_open

    def begin_look(self, call: WaitingCall) -> None:
        """Record that the call looks now."""
        call.looked = self.generation

    def end_look(self, call: WaitingCall, taken: Mapping[int, int]) -> None:
        """Record the jobs that the call has taken, by task queue, and pass its turns on."""
        for task_queue_id in tuple(call.searches):
            search = self._searches[task_queue_id]
            search.untaken = max(0, search.untaken - taken.get(task_queue_id, 0))
            if call.looked < search.since:
                call.wake(search.since)  # more jobs have come since it looked: it keeps its turn
            else:
                call.searches.remove(task_queue_id)
                search.looking -= 1
            self._continue(search)

    def _continue(self, search: Search) -> None:
        """Let as many calls look as there are untaken jobs; end the search if none has to."""
        while search.looking < search.untaken and search.has_jobs():
            call = next(search.calls, None)
            if call is None:
                break
            if call.looked < search.since and search.task_queue_id not in call.searches:
                call.searches.add(search.task_queue_id)
                search.looking += 1
                call.wake(search.since)
        if not search.looking:
            self._offer_to_occupied_slots(search)
            del self._searches[search.task_queue_id]

    def announce_jobs(self, task_queue: TaskQueue, _count: int) -> None:
        """Announce, in any thread, that `wake_for_jobs` will follow."""
        self._free_slots_first.add(task_queue.id)

    def is_offered(self, task_queue_id: int) -> bool:
        """Return, in any thread, whether new jobs of the task queue are still offered to free slots first."""
        return task_queue_id in self._free_slots_first

    def wake_for_jobs(self, task_queue: TaskQueue, count: int) -> None:
        """Start a search for calls that take `count` new jobs of the task queue, which have been announced."""
        search = self._searches.get(task_queue.id)
        if search is None:
            search = Search(task_queue.id, lambda: self._estimator.has_jobs(task_queue))
            self._searches[task_queue.id] = search
        search.untaken += count
        search.announcements += 1
        search.since = self._change(lambda call: self._could_match(call, task_queue))
        search.calls = self._takers(search, task_queue)
        self._continue(search)

    def _takers(self, search: Search, task_queue: TaskQueue) -> Iterator[WaitingCall | None]:
        """Yield the calls that could take the jobs, in the order of their turns."""
        busy: list[WaitingCall] = []
        for call in self._calls.with_slots(task_queue, PossibleSlots.FREE_SLOT):
            if call.searches:
                busy.append(call)
            else:
                yield call
        yield from busy
        while search.looking:
            yield None
        self._offer_to_occupied_slots(search)
        # What looked before has evicted nothing for these jobs.
        search.since = self._change(lambda call: self._could_match(call, task_queue))
        yield from self._calls.with_slots(task_queue, PossibleSlots.OCCUPIED_SLOT)

    def _offer_to_occupied_slots(self, search: Search) -> None:
        if search.announcements:
            self._free_slots_first.remove(search.task_queue_id, search.announcements)
            search.announcements = 0

    def _could_match(self, call: WaitingCall, task_queue: TaskQueue) -> bool:
        if not self._estimator.has_jobs(task_queue):
            return False
        return self._estimator.of(task_queue, call.credential, call.slots) is not PossibleSlots.NONE

    def wake_pilot(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        generation = self._change(lambda call: call.credential.stamp == stamp)
        for call in self._by_pilot.get(stamp, ()):
            call.wake(generation)

    def wake_all(self) -> None:
        """Wake all calls, a few at a time: any job may fit anywhere now."""
        self._calls.clear_estimates()
        search = self._searches.setdefault(ALL_TASK_QUEUES, Search(ALL_TASK_QUEUES, lambda: True, MAX_CONCURRENT_LOOKS))
        search.since = self._change(lambda _: True)
        search.calls = iter(self._calls)
        self._continue(search)

    def _change(self, concerns: Concerns) -> int:
        """Record a change; return its generation."""
        self._recent_changes.append(concerns)
        self.generation += 1
        return self.generation

    def close(self) -> None:
        """End all waits."""
        self.is_open = False
        generation = self._change(lambda _: True)
        for call in self._calls:
            call.wake(generation)
