"""Long polls: the wake-ups of calls that wait for jobs.

Rules
-----
A look is a call's try to match. New jobs start a search for calls that take them, one search for each task queue. At a
time, as many calls look as there are jobs that no look has taken; a call that takes none passes its turn on to the
next. Calls with free slots come first, in the order of arrival, busy ones at their end. When all of them have looked,
calls with occupied slots follow; until then, the jobs evict no others.

More jobs of the task queue go on with its search. When all calls with free slots have looked, they look once more if
jobs were taken meanwhile. Then as many occupied slots as there are jobs get turns before the free ones look again. So a
steady stream of jobs that many calls refuse reaches all calls.

A change that concerns all calls, such as a new resource tree, starts a search of its own.

Each change has a number, its generation, and recent ones are remembered. So a look counts for the changes before it,
and a new call looks again if a later change concerns it.

Everything but `LongPolls.generation`, `LongPolls.announce_jobs` and `LongPolls.is_offered` runs in the event loop's
thread.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

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
"""In place of the id of a task queue: the search in which all calls look."""

Concerns = Callable[[WaitingCall], bool]
"""Whether a change is a reason for a call to look."""


@dataclass(eq=False, slots=True)
class Search:
    """The looks of calls for the jobs of one task queue, of which `untaken` are new, or of all calls for any jobs.

    `phase` = the slots whose turn it is; NONE = all. `calls` are those that may come next, and have to look if their
    last look began before the generation `since`. `looking` = how many calls look, or have to.

    Since the phase of free slots began last, jobs may have come, at the generation `more_since` (0 = none), and calls
    may have taken some. `is_repeated` = that phase followed another one of free slots. `occupied` are the calls of
    occupied slots that have had no turn yet; None = all. `is_resumed` = others had their turn before the latest jobs.
    """

    task_queue: TaskQueue | None = None
    untaken: int = 0
    phase: PossibleSlots = PossibleSlots.NONE
    since: int = 0
    calls: Iterator[WaitingCall] = field(default_factory=lambda: iter(()))
    looking: int = 0
    more_since: int = 0
    has_taken: bool = False
    is_repeated: bool = False
    is_resumed: bool = False
    occupied: Iterator[WaitingCall] | None = None

    @property
    def key(self) -> int:
        """The id of the task queue, or `ALL_TASK_QUEUES`."""
        return ALL_TASK_QUEUES if self.task_queue is None else self.task_queue.id


class LongPolls:
    """All waiting calls."""

    def __init__(self, estimator: MatchEstimator) -> None:
        self._estimator = estimator
        self._calls = WaitingCalls(estimator)
        self._by_pilot: defaultdict[str, set[WaitingCall]] = defaultdict(set)
        self._numbers = itertools.count()
        self._searches: dict[int, Search] = {}
        self._announced: list[int] = []
        self._announced_lock = threading.Lock()
        self._recent_changes: deque[Concerns] = deque(maxlen=MAX_RECENT_CHANGES)
        self.generation = 0
        """That of the latest change. A call reads it, in any thread, before its first look."""
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
                call.wake()
            yield call
        finally:
            self._remove(call)
            call.looked = math.inf  # it does not have to look any more
            self._end_look(call, Counter())

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

    @contextmanager
    def look(self, call: WaitingCall) -> Iterator[Counter[int]]:
        """Record that the call looks within the block, which counts the jobs that it takes by task queue."""
        call.looked, call.is_looking, call.has_to_look = self.generation, True, False
        taken: Counter[int] = Counter()
        try:
            yield taken
        finally:
            self._end_look(call, taken)

    def _end_look(self, call: WaitingCall, taken: Counter[int]) -> None:
        """Pass on the turns of the call; where its look began before those of a search, it looks again."""
        call.is_looking = False
        searches = [self._searches[key] for key in call.searches]
        for search in searches:
            if call.looked < search.since:
                call.wake()  # what it has taken may be older than the jobs of the search
            else:
                call.searches.remove(search.key)
                search.looking -= 1
                search.untaken = max(0, search.untaken - taken[search.key])
                search.has_taken |= taken[search.key] > 0
        for search in searches:
            self._continue(search)

    def _continue(self, search: Search) -> None:
        """Give the turns of a search to the next calls; if no call looks any more, begin the next phase or end it."""
        # With more jobs, occupied slots that look are the last ones before the free slots.
        is_over = (search.phase is PossibleSlots.OCCUPIED_SLOT and search.more_since > 0) or self._give_turns(search)
        while is_over and not search.looking and self._begin_next_phase(search):
            is_over = self._give_turns(search)
        if not search.looking:
            del self._searches[search.key]

    def _give_turns(self, search: Search) -> bool:
        """Let the next calls look; return whether there are turns left, and no more calls in this phase."""
        while search.looking < self._turns(search):
            call = next(search.calls, None)
            if call is None:
                if search.phase is PossibleSlots.OCCUPIED_SLOT:
                    search.occupied = None
                return True
            has_to_look = call.looked < search.since
            if (has_to_look or call.is_looking) and search.key not in call.searches:
                call.searches.add(search.key)
                search.looking += 1
                if has_to_look:
                    call.wake()
        return False

    def _turns(self, search: Search) -> int:
        """Return how many calls may look at a time."""
        if search.task_queue is None:
            return MAX_CONCURRENT_LOOKS
        # Calls that did not have to wait may have taken some of the jobs.
        return min(search.untaken, self._estimator.jobs_left(search.task_queue))

    def _begin_next_phase(self, search: Search) -> bool:
        """Begin the next phase of a search, in which no call looks; False = there is none.

        With more jobs, free slots look again: once at their end if jobs were taken, else after turns of occupied slots.
        """
        task_queue = search.task_queue
        if task_queue is None or not self._turns(search):
            return False
        is_free = search.phase is PossibleSlots.FREE_SLOT
        if is_free:
            were_taken = search.has_taken or self._estimator.jobs_left(task_queue) < search.untaken
            looks_again = search.more_since > 0 and were_taken and not search.is_repeated
        else:
            looks_again = search.more_since > 0
        if looks_again:
            search.is_repeated = is_free
            self._begin_free(search, task_queue, search.more_since)
            return True
        if not is_free and not search.is_resumed:
            return False
        search.is_resumed = is_free and search.occupied is not None
        if is_free:
            search.phase, search.since = PossibleSlots.OCCUPIED_SLOT, self._change_for(task_queue)
        search.occupied = search.occupied or self._calls.with_slots(task_queue, PossibleSlots.OCCUPIED_SLOT)
        search.calls = search.occupied
        return True

    def _begin_free(self, search: Search, task_queue: TaskQueue, since: int) -> None:
        search.phase, search.since = PossibleSlots.FREE_SLOT, since
        search.more_since, search.has_taken = 0, False
        search.calls = self._calls.with_slots(task_queue, PossibleSlots.FREE_SLOT)

    def _could_match(self, task_queue: TaskQueue, call: WaitingCall) -> bool:
        if not self._estimator.jobs_left(task_queue):
            return False
        return self._estimator.of(task_queue, call.credential, call.slots) is not PossibleSlots.NONE

    def announce_jobs(self, task_queue: TaskQueue, _count: int) -> None:
        """Announce, in any thread, that `wake_for_jobs` will follow."""
        with self._announced_lock:
            self._announced.append(task_queue.id)

    def is_offered(self, task_queue_id: int) -> bool:
        """Return, in any thread, whether free slots come first for new jobs of the task queue."""
        with self._announced_lock:
            if task_queue_id in self._announced:
                return True
        search = self._searches.get(task_queue_id)
        return search is not None and search.phase is PossibleSlots.FREE_SLOT

    def wake_for_jobs(self, task_queue: TaskQueue, count: int) -> None:
        """Start a search for calls that take `count` new jobs of the task queue, which have been announced."""
        if count:
            search = self._searches.setdefault(task_queue.id, Search(task_queue))
            search.untaken += count
            since = self._change_for(task_queue)
            if search.phase is PossibleSlots.NONE:
                self._begin_free(search, task_queue, since)
            else:
                search.more_since = since
        with self._announced_lock:
            self._announced.remove(task_queue.id)
        if count:
            self._continue(search)

    def wake_pilot(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        self._change(lambda call: call.credential.stamp == stamp)
        for call in self._by_pilot.get(stamp, ()):
            call.wake()

    def wake_all(self) -> None:
        """Wake all calls, a few at a time: any job may fit anywhere now."""
        self._calls.clear_estimates()
        search = self._searches.setdefault(ALL_TASK_QUEUES, Search())
        search.since = self._change(lambda _: True)
        search.calls = iter(self._calls)
        self._continue(search)

    def _change_for(self, task_queue: TaskQueue) -> int:
        """Record a change that concerns calls with slots for jobs of a task queue; return its generation."""
        return self._change(partial(self._could_match, task_queue))

    def _change(self, concerns: Concerns) -> int:
        """Record a change; return its generation."""
        self._recent_changes.append(concerns)
        self.generation += 1
        return self.generation

    def close(self) -> None:
        """End all waits."""
        self.is_open = False
        for call in self._calls:
            call.wake()
