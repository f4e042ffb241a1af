"""Time that passes only when a test advances it, also in the running event loop."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class VirtualClock:
    """A clock, for `Database` and others, that only `advance` moves."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start

    def __call__(self) -> datetime:
        return self._now

    def advance(self, time: timedelta | None = None, **amounts: float) -> datetime:
        """Let time pass, such as `advance(minutes=5)`; returns the new time."""
        self._now += time if time is not None else timedelta(**amounts)
        return self._now


class LoopTime:
    """Lets time pass on the running event loop, so that its timers expire."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._ahead_s = 0.0
        loop.time = lambda: real() + self._ahead_s  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead_s += seconds
