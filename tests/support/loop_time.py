"""Time of the running event loop that passes when a test lets it."""

from __future__ import annotations

import asyncio


class LoopTime:
    """Lets time pass on the running event loop: what waits so long has waited so long."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._ahead_s = 0.0
        loop.time = lambda: real() + self._ahead_s  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self._ahead_s += seconds
