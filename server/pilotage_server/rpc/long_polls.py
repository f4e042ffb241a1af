"""Calls that wait for work: news of waiting jobs wakes as many of them as there are jobs, not all.

Rules
-----
Everything here happens in the event loop's thread. A waiter is entered before it looks for the first time, so
that no job comes in unnoticed between its look and its wait. Who was told of jobs and did not take them hands
the news on to the next, so no job waits beside an idle slot because the wrong waiter was woken. Who would have to
throw a job out for the new one is told when nobody with a free slot has taken it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.chances import Chance
from pilotage_server.rpc.alike_waiters import AlikeWaiters, Chances
from pilotage_server.rpc.jobs_on_offer import JobsOnOffer
from pilotage_server.rpc.waiters import News, RollCall, Waiter

LOOK_AT_ONCE = 32
"""So many waiters look at the same time when all are to look again."""


class LongPolls:
    """All calls that wait for work, the longest waiting first."""

    def __init__(self, chances: Chances) -> None:
        self._on_offer = JobsOnOffer()
        self._waiters = AlikeWaiters(chances)
        self._by_stamp: defaultdict[str, set[Waiter]] = defaultdict(set)
        self._numbers = itertools.count()
        self._roll_call = RollCall(LOOK_AT_ONCE)
        self.is_open = True

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def waiting(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Iterator[Waiter]:
        """Enter a waiter for the time of the block; however it ends, none is left behind."""
        waiter = Waiter(next(self._numbers), credential, slots)
        self._waiters.add(waiter)
        self._by_stamp[credential.stamp].add(waiter)
        try:
            yield waiter
        finally:
            self._remove(waiter)
            waiter.leave()

    async def woken(self, waiter: Waiter, timeout_s: float) -> bool:
        """Wait until a waiter has a reason to look again; False = there was none in time, or no call waits any more."""
        return self.is_open and await waiter.woken(timeout_s) and self.is_open

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
        News(task_queue.id, count, self._candidates(task_queue), self._on_offer).spread()
        self._on_offer.arrived(task_queue.id)

    def _candidates(self, task_queue: TaskQueue) -> Iterator[tuple[Waiter, Chance]]:
        """Yield those that could take the jobs, first those that no other news keeps busy."""
        free, occupied = Chance.FREE_SLOT, Chance.OCCUPIED_SLOT
        busy: list[Waiter] = []
        for waiter in self._waiters.worth_asking(task_queue, free):
            if waiter.is_told:
                busy.append(waiter)
            elif self._waiters.has_chance(waiter, task_queue, free):
                yield waiter, free
        for waiter in busy:
            if waiter.is_open and self._waiters.has_chance(waiter, task_queue, free):
                yield waiter, free
        for waiter in self._waiters.worth_asking(task_queue, occupied):
            if self._waiters.has_chance(waiter, task_queue, occupied):
                yield waiter, occupied

    def pilot_called(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        for waiter in self._by_stamp.get(stamp, ()):
            waiter.tell(None)

    def everything_changed(self) -> None:
        """Wake all, one after the other: what may go where is no longer what it was."""
        self._waiters.forget_chances()
        self._roll_call.begin(waiter for waiter in self._waiters if waiter.is_open)

    def close(self) -> None:
        """Let every call that waits come to its end."""
        self.is_open = False
        for waiter in self._waiters:
            waiter.tell(None)
