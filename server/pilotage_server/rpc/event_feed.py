"""Hands the events of committed transactions to the calls that follow them.

Rules
-----
A follower is told in the event loop's thread and only takes note; what it needs for certain it reads from the
database, because other servers on the same database have events too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.jobs import FINAL
from pilotage_server.rpc.calls import idle
from pilotage_server.rpc.deadlines import within


class Follower:
    """A call that follows the events: it is woken by every event."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self, _events: Collection[JobEvent]) -> None:
        """Take note of events."""
        self._event.set()

    def wake(self) -> None:
        """End the wait, whatever happened."""
        self._event.set()

    async def woken(self, timeout_s: float) -> bool:
        """Wait for something that matters; False = there was nothing in time."""
        with idle():
            woken = await within(timeout_s, self._event)
        self._event.clear()
        return woken


class EndFollower(Follower):
    """A call that waits for the end of jobs: it is woken when the last of them has reached a final state."""

    def __init__(self, job_ids: Collection[int]) -> None:
        super().__init__()
        self._job_ids = job_ids
        self._open = set(job_ids)

    def begin(self) -> None:
        """Wait for all of them, before it is read which have ended: one may have been brought back to life."""
        self._open = set(self._job_ids)

    def tell(self, events: Collection[JobEvent]) -> None:
        """Take note of the jobs that have ended."""
        self.have_ended(event.job_id for event in events if event.to_state in FINAL)

    def have_ended(self, job_ids: Iterable[int]) -> None:
        """Take note that these jobs have ended, some perhaps before anybody told of it."""
        self._open.difference_update(job_ids)
        if not self._open:
            self.wake()


class EventFeed:
    """All calls that follow the events."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self.is_open = True

    @property
    def is_followed(self) -> bool:
        """Whether there is anybody to be told, to be asked in any thread.

        Who begins to follow reads the database after that, and so misses nothing that was committed before.
        """
        return bool(self._followers)

    def happened(self, events: Sequence[JobEvent]) -> None:
        """Tell every follower."""
        for follower in self._followers:
            follower.tell(events)

    @contextmanager
    def followed_by(self, follower: Follower) -> Iterator[None]:
        """Let `follower` be told for the time of the block."""
        self._followers.add(follower)
        try:
            yield
        finally:
            self._followers.discard(follower)

    def nudge(self) -> None:
        """Let every follower look into the database: there may be events that this server was not told of."""
        for follower in self._followers:
            follower.wake()

    def close(self) -> None:
        """Let every call that follows come to its end."""
        self.is_open = False
        self.nudge()
