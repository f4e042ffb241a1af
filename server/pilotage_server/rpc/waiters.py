"""One call that waits for work, and what it is told: news of jobs, which it takes or hands on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import SlotOffer
from pilotage_server.rpc.calls import idle
from pilotage_server.rpc.jobs_on_offer import JobsOnOffer

NO_TASK_QUEUE = 0
"""Stands for all of them."""


class Told(Protocol):
    """What makes a waiter look, and hears what the look gave."""

    task_queue_id: int

    def answered(self, waiter: Waiter, taken: int) -> int:
        """Take note that one who was told has looked and took so many jobs; return how many of them were these."""


@dataclass(slots=True)
class News:
    """Jobs that came to wait: how many nobody took yet, who may still be told, with `free` slots or `occupied` ones.

    While anybody with a free slot looks the jobs are on offer and drive no other out: so who would have to throw a job
    out is told after all those have looked.
    """

    task_queue_id: int
    untaken: int
    free: Iterator[Waiter]
    occupied: Iterator[Waiter]
    on_offer: JobsOnOffer
    _looking: int = 0
    _looking_with_free_slots: set[Waiter] = field(default_factory=set)

    def spread(self) -> None:
        """Tell as many waiters as there are jobs that nobody looks for yet."""
        while self._looking < self.untaken and (waiter := self._next()) is not None:
            self._looking += 1
            waiter.tell(self)

    def _next(self) -> Waiter | None:
        """Return who is to be told now; None = nobody, or nobody yet."""
        waiter = next(self.free, None)
        if waiter is not None:
            self._looking_with_free_slots.add(waiter)
            self.on_offer.asks(self.task_queue_id, waiter.credential.stamp)
            return waiter
        return None if self._looking_with_free_slots else next(self.occupied, None)

    def answered(self, waiter: Waiter, taken: int) -> int:
        """Take note that one who was told has looked and took so many jobs; return how many of them were these."""
        self._looking -= 1
        if waiter in self._looking_with_free_slots:
            self._looking_with_free_slots.discard(waiter)
            self.on_offer.asked(self.task_queue_id, waiter.credential.stamp)
        credited = min(taken, self.untaken)
        self.untaken -= credited
        self.spread()
        return credited


@dataclass(slots=True)
class RollCall:
    """Lets every waiter look, a few at a time: what may go where has changed, and other calls are to be served too."""

    at_once: int
    untold: Iterator[Waiter] = field(default_factory=lambda: iter(()))
    task_queue_id: int = NO_TASK_QUEUE
    _looking: int = 0

    def begin(self, waiters: Iterator[Waiter]) -> None:
        """Call these; what is left of an earlier roll is among them."""
        self.untold = waiters
        self._spread()

    def _spread(self) -> None:
        while self._looking < self.at_once and (waiter := next(self.untold, None)) is not None:
            self._looking += 1
            waiter.tell(self)

    def answered(self, _waiter: Waiter, _taken: int) -> int:
        """Take note that one has looked, and let the next one look."""
        self._looking -= 1
        self._spread()
        return 0


@dataclass(eq=False, slots=True)
class Waiter:
    """One call that waits: what it offers, and the news that it has not looked into yet.

    `number` tells who has waited longer: whose is lower.
    """

    number: int
    credential: PilotCredential
    slots: Sequence[SlotOffer]
    is_open: bool = True
    _is_called: bool = False
    _sleep: asyncio.Future[bool] | None = None
    _told: list[Told] = field(default_factory=list)
    _looking_into: list[Told] = field(default_factory=list)

    def tell(self, news: Told | None) -> None:
        """Wake the call; None = for another reason than jobs."""
        if news is not None:
            self._told.append(news)
        self._is_called = True
        self._end_sleep(woken=True)

    def looks(self) -> None:
        """Say that the call looks for jobs now, with all that it has been told."""
        self._is_called = False
        self._looking_into += self._told
        self._told = []

    def looked(self, taken: Mapping[int, int]) -> None:
        """Say what the look gave: jobs taken, by task queue."""
        left = Counter(taken)  # a job taken answers one piece of news, not all that told of its task queue
        news_seen, self._looking_into = self._looking_into, []
        for news in news_seen:
            left[news.task_queue_id] -= news.answered(self, left[news.task_queue_id])

    @property
    def is_told(self) -> bool:
        """Whether there is news that the call has not answered for yet."""
        return bool(self._told or self._looking_into)

    async def woken(self, timeout_s: float) -> bool:
        """Wait until there is a reason to look again; False = there was none in time."""
        if self._is_called:
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

    def leave(self) -> None:
        """Hand on what the call was told and does not look into any more."""
        self.is_open = False
        self.looks()
        self.looked({})
