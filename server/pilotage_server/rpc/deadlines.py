"""How long a call may wait for something to happen."""

from __future__ import annotations

import asyncio
from typing import Protocol

TAIL_ROOM_S = 1.0
"""A waiting call answers so long before its deadline, or its answer would come too late."""


class Timed(Protocol):
    """What a call says of its deadline."""

    def time_remaining(self) -> float:
        """Return the seconds left; infinite where the call has no deadline."""


def patience_s(call: Timed, wanted_s: float, longest_s: float) -> float:
    """Return how long the call waits: as it wants, as the server allows, and ending before its deadline."""
    return max(0.0, min(wanted_s, longest_s, call.time_remaining() - TAIL_ROOM_S))


async def within(timeout_s: float, event: asyncio.Event) -> bool:
    """Wait for `event`; False = it was not set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
