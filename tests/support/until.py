"""Waiting for what another process does, where it gives no event to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(happened: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Return as soon as it has `happened`; raises TimeoutError when it does not."""
    async with asyncio.timeout(timeout_s):
        while not happened():  # noqa: ASYNC110 - another process cannot set an event of ours
            await asyncio.sleep(0.005)
