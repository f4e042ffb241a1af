"""Notifies waiting calls of the events of committed transactions.

Rules
-----
A call is notified only of events of jobs that it may see: followers are kept by owner. A commit announces that there
are new events; then one query for all followers reads whose they are and which jobs have ended.
Events of other servers on the database come the same way.

Followers run in the event loop's thread. A notification is a hint: a follower reads the database.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Set
from contextlib import asynccontextmanager

import structlog

from pilotage_server.core.identity import Holder
from pilotage_server.operations.jobs.queries import FeedNews
from pilotage_server.rpc.framework.calls import idle, wait_for_event

log = structlog.get_logger()


class Follower:
    """A call that follows events of jobs of `whose`, None = of all jobs; every such event wakes it."""

    def __init__(self, whose: Holder | None) -> None:
        self.whose = whose
        self._event = asyncio.Event()

    def notify(self, _ended: Set[int]) -> None:
        """Wake the call for new events; `ended` = the jobs that have a final state by them."""
        self._event.set()

    def wake(self) -> None:
        """Wake the call."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait to be woken; False = it was not in time."""
        with idle():
            woken = await wait_for_event(timeout_s, self._event)
        self._event.clear()
        return woken


class EndFollower(Follower):
    """A call that waits for the end of jobs; it wakes when the last of them has a final state."""

    def __init__(self, whose: Holder | None, job_ids: Collection[int]) -> None:
        super().__init__(whose)
        self._job_ids = job_ids
        self._open = set(job_ids)

    def reset(self) -> None:
        """Wait for all jobs again. Called before they are read: a job that had ended may have been rerun."""
        self._open = set(self._job_ids)

    def notify(self, ended: Set[int]) -> None:
        """Record the jobs that have ended."""
        self.mark_ended(ended)

    def mark_ended(self, job_ids: Iterable[int]) -> None:
        """Record that these jobs have ended, and wake the call after the last one."""
        self._open = self._open.difference(job_ids)
        if not self._open:
            self.wake()


PAUSE_S = 0.02
"""Pause between two rounds of notifications: events of many commits share one."""

RETRY_S = 1.0
"""Pause after news that could not be read."""


class EventFeed:
    """All calls that follow events. `read_news` reads the news after a position, None = only the newest position."""

    def __init__(self, read_news: Callable[[int | None], Awaitable[FeedNews]]) -> None:
        self._read_news = read_news
        self._followers: defaultdict[Holder | None, set[Follower]] = defaultdict(set)
        self._position: int | None = None
        self._announced = asyncio.Event()
        self._starting = asyncio.Lock()
        self.is_open = True

    @property
    def has_followers(self) -> bool:
        """Whether any call follows; safe in any thread.

        A new follower reads the database after it subscribes, so it misses no event that was committed before.
        """
        return bool(self._followers)

    def announce(self) -> None:
        """Record that there are new events."""
        self._announced.set()

    async def run(self) -> None:
        """Notify the followers of what is announced, until the feed is closed."""
        while self.is_open:
            await self._announced.wait()
            self._announced.clear()
            pause_s = PAUSE_S
            try:
                if self._followers:
                    await self._notify()
            except Exception as error:  # the edge of a loop: the database may be away
                log.warning("followers are not notified", why=str(error))
                self._announced.set()
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)

    async def _notify(self) -> None:
        if self._position is None:  # a first follower comes, which reads the database later
            return
        news = await self._read_news(self._position)
        self._position = news.position
        for whose in (None, *news.owners):
            for follower in self._followers.get(whose, ()):
                follower.notify(news.ended)
        if not news.at_end:
            self._announced.set()

    @asynccontextmanager
    async def subscribed(self, follower: Follower) -> AsyncIterator[None]:
        """Notify `follower` within the block of events that come after its begin."""
        group = self._followers[follower.whose]
        group.add(follower)
        try:
            async with self._starting:
                if self._position is None:
                    self._position = (await self._read_news(None)).position
            yield
        finally:
            group.discard(follower)
            if not group:
                self._followers.pop(follower.whose, None)
            if not self._followers:
                self._position = None

    def wake_all(self) -> None:
        """Wake every follower."""
        for group in self._followers.values():
            for follower in group:
                follower.wake()

    def close(self) -> None:
        """End all waits."""
        self.is_open = False
        self.announce()
        self.wake_all()
