"""Calls that wait for work: news of waiting jobs wakes as many of them as there are jobs, not all.

Rules
-----
Everything here happens in the event loop's thread. A waiter is entered before it looks for the first time, so
that no job comes in unnoticed between its look and its wait. Who was told of jobs and did not take them hands
the news on to the next, so no job waits beside an idle slot because the wrong waiter was woken. Who would have to
throw a job out for the new one is told when nobody with a free slot has taken it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.chances import Chance
from pilotage_server.rpc.deadlines import within
from pilotage_server.rpc.jobs_on_offer import JobsOnOffer

Chances = Callable[[TaskQueue, PilotCredential, Sequence[SlotOffer]], Chance]
"""Tells which kinds of slots a pilot has for jobs of a task queue."""


@dataclass(slots=True)
class _News:
    """Jobs that came to wait: how many nobody took yet, how many look now, who may still be told."""

    task_queue_id: int
    untaken: int
    untold: Iterator[tuple[Waiter, Chance]]
    on_offer: JobsOnOffer
    looking: int = 0
    _with_free_slots: set[Waiter] = field(default_factory=set)

    def spread(self) -> None:
        """Tell as many waiters as there are jobs that nobody looks for yet."""
        while self.looking < self.untaken:
            waiter, kind = next(self.untold, (None, Chance.NONE))
            if waiter is None:
                return
            self.looking += 1
            if kind is Chance.FREE_SLOT:
                self._with_free_slots.add(waiter)
                self.on_offer.asks(self.task_queue_id, waiter.credential.stamp)
            waiter.tell(self)

    def answered(self, waiter: Waiter, taken: int) -> int:
        """Take note that one who was told has looked and took so many jobs; return how many of them were these."""
        self.looking -= 1
        if waiter in self._with_free_slots:
            self._with_free_slots.discard(waiter)
            self.on_offer.asked(self.task_queue_id, waiter.credential.stamp)
        credited = min(taken, self.untaken)
        self.untaken -= credited
        self.spread()
        return credited


@dataclass(eq=False, slots=True)
class Waiter:
    """One call that waits: what it offers, and the news that it has not looked into yet."""

    credential: PilotCredential
    slots: Sequence[SlotOffer]
    is_open: bool = True
    _event: asyncio.Event = field(default_factory=asyncio.Event)
    _told: list[_News] = field(default_factory=list)
    _looking_into: list[_News] = field(default_factory=list)

    def tell(self, news: _News | None) -> None:
        """Wake the call; None = for another reason than jobs."""
        if news is not None:
            self._told.append(news)
        self._event.set()

    def looks(self) -> None:
        """Say that the call looks for jobs now, with all that it has been told."""
        self._event.clear()
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
        return await within(timeout_s, self._event)

    def leave(self) -> None:
        """Hand on what the call was told and does not look into any more."""
        self.is_open = False
        self.looks()
        self.looked({})


class LongPolls:
    """All calls that wait for work, the longest waiting first."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._on_offer = JobsOnOffer()
        self._waiters: dict[Waiter, None] = {}
        self.is_open = True

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def waiting(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Iterator[Waiter]:
        """Enter a waiter for the time of the block; however it ends, none is left behind."""
        waiter = Waiter(credential, slots)
        self._waiters[waiter] = None
        try:
            yield waiter
        finally:
            del self._waiters[waiter]
            waiter.leave()

    def jobs_come(self, task_queue: TaskQueue, _count: int) -> None:
        """Take note, in any thread, that `jobs_arrived` will be told of these."""
        self._on_offer.coming(task_queue.id)

    def is_offered(self, task_queue_id: int, stamp: str) -> bool:
        """Whether free slots of other pilots than the one with this stamp are about to be offered new jobs."""
        return self._on_offer.is_offered(task_queue_id, stamp)

    def jobs_arrived(self, task_queue: TaskQueue, count: int) -> None:
        """Wake up to `count` waiters that could take jobs of the task queue."""
        _News(task_queue.id, count, self._candidates(task_queue), self._on_offer).spread()
        self._on_offer.arrived(task_queue.id)

    def _candidates(self, task_queue: TaskQueue) -> Iterator[tuple[Waiter, Chance]]:
        """Yield those that could take the jobs, first those that no other news keeps busy."""
        busy: list[Waiter] = []
        for waiter in self._with(Chance.FREE_SLOT, task_queue):
            if waiter.is_told:
                busy.append(waiter)
            else:
                yield waiter, Chance.FREE_SLOT
        yield from ((waiter, Chance.FREE_SLOT) for waiter in busy if waiter.is_open)
        yield from ((waiter, Chance.OCCUPIED_SLOT) for waiter in self._with(Chance.OCCUPIED_SLOT, task_queue))

    def _with(self, kind: Chance, task_queue: TaskQueue) -> Iterator[Waiter]:
        for waiter in tuple(self._waiters):
            if waiter.is_open and kind in self._chances(task_queue, waiter.credential, waiter.slots):
                yield waiter

    def pilot_called(self, stamp: str) -> None:
        """Wake the calls of one pilot: there is a command for it."""
        for waiter in self._waiters:
            if waiter.credential.stamp == stamp:
                waiter.tell(None)

    def everything_changed(self) -> None:
        """Wake all: what may go where is no longer what it was."""
        for waiter in self._waiters:
            waiter.tell(None)

    def close(self) -> None:
        """Let every call that waits come to its end."""
        self.is_open = False
        self.everything_changed()
