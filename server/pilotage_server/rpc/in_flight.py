"""The calls under way that do not merely wait: past a number of them, more are refused, not queued without end.

Rules
-----
Refusing costs next to nothing: it comes before anything of a call is read or verified. Who is refused is told when to
come again: the later, the more were refused of late, so that they do not all come back at once.
"""

from __future__ import annotations

from functools import lru_cache

import grpc
import structlog
from grpc_status import rpc_status

from pilotage.clock import BootClock
from pilotage.errors import OverloadedError
from pilotage.status import status_of
from pilotage_server.rpc.calls import Call

log = structlog.get_logger()

SHORTEST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
"""Who is refused is asked to come again after so long."""

LATELY_S = 1.0
"""After so long a refusal counts half."""

TOLD_EVERY_S = 10.0
"""The log says so often that calls are refused."""


class CallsInFlight:
    """Such calls, at most `most`; adding and removing are safe in any thread."""

    def __init__(self, most: int, clock: BootClock) -> None:
        self._most = most
        self._clock = clock
        self._calls: set[Call[object]] = set()  # whose own operations no other thread can come between
        self._refused_lately = 0.0
        self._refused_s = self._told_s = float("-inf")

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call[object]) -> None:
        """Count a call."""
        self._calls.add(call)
        if call.is_over:  # it may have ended just now, in another thread
            self._calls.discard(call)

    def discard(self, call: Call[object]) -> None:
        """Count a call no longer."""
        self._calls.discard(call)

    def refusal(self) -> grpc.Status | None:
        """Return the status that one more call is refused with; None = there is room. For the serving thread."""
        if len(self._calls) < self._most:
            return None
        now_s = self._clock()
        self._refused_lately = 1 + self._refused_lately * 0.5 ** ((now_s - self._refused_s) / LATELY_S)
        self._refused_s = now_s
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            log.warning("calls are refused", in_flight=len(self._calls), refused_lately=round(self._refused_lately))
        delay_s = SHORTEST_DELAY_S * (1 + self._refused_lately / self._most)
        return _refusal(self._most, round(min(delay_s, LONGEST_DELAY_S), 1))


@lru_cache
def _refusal(most: int, delay_s: float) -> grpc.Status:
    text = f"the server is overloaded: it has {most} calls under way"
    status: grpc.Status = rpc_status.to_status(status_of(OverloadedError(text, delay_s)))
    return status
