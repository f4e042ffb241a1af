"""Calls that wait for work: news of waiting jobs wakes as many of them as there are jobs, not all.

Rules
-----
Everything here happens in the event loop's thread. A call has looked for jobs before it begins to wait; what happened
from then on is remembered for a while, and concerns it or not: so no job comes in unnoticed between its look and its
wait. Who was told of jobs and did not take them hands the news on to the next, as long as there are any left, so no
job waits beside an idle slot because the wrong waiter was woken. Who would have to throw a job out for the new one is
told when nobody with a free slot has taken it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.chances import Chance
from pilotage_server.rpc.alike_waiters import AlikeWaiters, Chances
from pilotage_server.rpc.jobs_on_offer import JobsOnOffer
from pilotage_server.rpc.waiters import News, RollCall, Waiter

LOOK_AT_ONCE = 32
"""So many waiters look at the same time when all are to look again."""

MOST_REMEMBERED = 64
"""So much of what happened is remembered; a call for which it is not enough looks once more."""

Concerns = Callable[[Waiter], bool]
"""Whether what happened is a reason for a waiter to look."""


class LongPolls:
    """All calls that wait for work, the longest waiting first."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._on_offer = JobsOnOffer()
        self._waiters = AlikeWaiters(chances)
        self._by_stamp: defaultdict[str, set[Waiter]] = defaultdict(set)
        self._numbers = itertools.count()
        self._roll_call = RollCall(LOOK_AT_ONCE)
        self._happened: deque[Concerns] = deque(maxlen=MOST_REMEMBERED)
        self.moment = 0
        """How much has happened so far: to be asked, in any thread, before a look."""
        self.is_open = True

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def waiting(self, credential: PilotCredential, slots: Sequence[SlotOffer], since: int) -> Iterator[Waiter]:
        """Enter a waiter for the time of the block; however it ends, none is left behind.

        It is woken if anything concerns it that has happened since the `moment` before its look.
        """
        waiter = Waiter(next(self._numbers), credential, slots)
        self._waiters.add(waiter)
        self._by_stamp[credential.stamp].add(waiter)
        try:
            if self._has_missed(waiter, since):
                waiter.tell(None)
            yield waiter
        finally:
            self._remove(waiter)
            waiter.leave()

    async def woken(self, waiter: Waiter, timeout_s: float) -> bool:
        """Wait until a waiter has a reason to look again; False = there was none in time, or no call waits any more."""
        return self.is_open and await waiter.woken(timeout_s) and self.is_open

    def _has_missed(self, waiter: Waiter, since: int) -> bool:
        missed = self.moment - since
        if missed > len(self._happened):
            return True
        return any(concerns(waiter) for concerns in itertools.islice(reversed(self._happened), missed))

    def _remember(self, concerns: Concerns) -> None:
        self._happened.append(concerns)
        self.moment += 1

    def _remove(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        of_pilot = self._by_stamp[waiter.credential.stamp]
        of_pilot.remove(waiter)
        if not of_pilot:
            del self._by_stamp[waiter.credential.stamp]

    def jobs_come(self, task_queue: TaskQueue, _count: int) -> None:
        """Take note, in any thread, that `jobs_arrived` will be told of these."""
        self._on_offer.coming(task_queue.id)

    def is_offered(self, task_queue_id: int, stamp: str) -> bool:
        """Whether free slots of other pilots than the one with this stamp are about to be offered new jobs."""
        return self._on_offer.is_offered(task_queue_id, stamp)

    def jobs_arrived(self, task_queue: TaskQueue, count: int) -> None:
        """Wake up to `count` waiters that could take jobs of the task queue."""
        self._remember(partial(self._waiters.has_any_chance, task_queue))
        while_left = partial(itertools.takewhile, partial(self._are_left, task_queue))
        free, occupied = self._with_free_slots(task_queue), self._with_occupied_slots(task_queue)
        News(task_queue.id, count, while_left(free), while_left(occupied), self._on_offer).spread()
        self._on_offer.arrived(task_queue.id)

    def _are_left(self, task_queue: TaskQueue, _waiter: Waiter) -> bool:
        return self._chances.are_left(task_queue)

    def _with_free_slots(self, task_queue: TaskQueue) -> Iterator[Waiter]:
        """Yield those that could take the jobs at once, first those that no other news keeps busy."""
        busy: list[Waiter] = []
        for waiter in self._waiters.worth_asking(task_queue, Chance.FREE_SLOT):
            if waiter.is_told:
                busy.append(waiter)
            elif self._waiters.has_chance(waiter, task_queue, Chance.FREE_SLOT):
                yield waiter
        for waiter in busy:
            if waiter.is_open and self._waiters.has_chance(waiter, task_queue, Chance.FREE_SLOT):
                yield waiter

    def _with_occupied_slots(self, task_queue: TaskQueue) -> Iterator[Waiter]:
        """Yield those that would have to throw a job out for them."""
        for waiter in self._waiters.worth_asking(task_queue, Chance.OCCUPIED_SLOT):
            if self._waiters.has_chance(waiter, task_queue, Chance.OCCUPIED_SLOT):
                yield waiter
        self._remember(partial(self._waiters.has_any_chance, task_queue))  # who looked while others were asked first

    def pilot_called(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        self._remember(lambda waiter: waiter.credential.stamp == stamp)
        for waiter in self._by_stamp.get(stamp, ()):
            waiter.tell(None)

    def everything_changed(self) -> None:
        """Wake all, one after the other: what may go where is no longer what it was."""
        self._remember(lambda _: True)
        self._waiters.forget_chances()
        self._roll_call.begin(waiter for waiter in self._waiters if waiter.is_open)

    def close(self) -> None:
        """Let every call that waits come to its end."""
        self.is_open = False
        for waiter in self._waiters:
            waiter.tell(None)
