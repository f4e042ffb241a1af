"""Notifies waiting calls of the events of committed transactions.

Rules
-----
Followers run in the event loop's thread. A notification is a hint: a follower reads the database, because other servers
on it have events too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import FINAL
from pilotage_server.rpc.framework.calls import idle, wait_for_event


class Follower:
    """A call that follows events; every event wakes it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self, _events: Collection[FeedEvent]) -> None:
        """Wake the call for these events."""
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

    def __init__(self, job_ids: Collection[int]) -> None:
        super().__init__()
        self._job_ids = job_ids
        self._open = set(job_ids)

    def reset(self) -> None:
        """Wait for all jobs again. Called before they are read: a job that had ended may have been rerun."""
        self._open = set(self._job_ids)

    def notify(self, events: Collection[FeedEvent]) -> None:
        """Record the jobs that have ended."""
        self.mark_ended(event.job_id for event in events if event.to_state in FINAL)

    def mark_ended(self, job_ids: Iterable[int]) -> None:
        """Record that these jobs have ended, and wake the call after the last one."""
        self._open.difference_update(job_ids)
        if not self._open:
            self.wake()


class EventFeed:
    """All calls that follow events."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self.is_open = True

    @property
    def has_followers(self) -> bool:
        """Whether any call follows; safe in any thread.

        A new follower reads the database after it subscribes, so it misses no event that was committed before.
        """
        return bool(self._followers)

    def publish(self, events: Sequence[FeedEvent]) -> None:
        """Notify every follower."""
        for follower in self._followers:
            follower.notify(events)

    @contextmanager
    def subscribed(self, follower: Follower) -> Iterator[None]:
        """Notify `follower` of events within the block."""
        self._followers.add(follower)
        try:
            yield
        finally:
            self._followers.discard(follower)

    def wake_all(self) -> None:
        """Wake every follower: the database may have events of other servers."""
        for follower in self._followers:
            follower.wake()

    def close(self) -> None:
        """End all waits."""
        self.is_open = False
        self.wake_all()
