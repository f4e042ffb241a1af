"""Things that a job router does at intervals."""

from __future__ import annotations

from datetime import datetime, timedelta


class Every:
    """Something that is done at intervals, and at once when nobody knows better."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._last: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether it is time."""
        return self._last is None or now >= self._last + self._interval

    def done(self, now: datetime) -> None:
        """Begin the next interval."""
        self._last = now

    def at_once(self) -> None:
        """Let it be time."""
        self._last = None

    def left(self, now: datetime) -> timedelta:
        """Return how long it is until then."""
        return timedelta(0) if self._last is None else max(timedelta(0), self._last + self._interval - now)
