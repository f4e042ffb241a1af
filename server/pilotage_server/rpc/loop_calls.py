"""From the writer threads into the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def in_event_loop(hear: Callable[..., None]) -> Callable[..., None]:
    """Return what lets `hear` be called soon in the running event loop, from whatever thread and without waiting."""
    loop = asyncio.get_running_loop()

    def hand_over(*news: Any) -> None:
        loop.call_soon_threadsafe(hear, *news)

    return hand_over
