"""Time that passes only when a test lets it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class VirtualClock:
    """A clock for `Database` and others; it stands still until it is moved."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """Return the present virtual time."""
        return self._now

    def advance(self, time: timedelta | None = None, **amounts: float) -> datetime:
        """Let time pass, such as `advance(minutes=5)`, and return the time after it."""
        self._now += time if time is not None else timedelta(**amounts)
        return self._now
