"""The places that copies go to, as a router asks them: each by itself, so that one that fails disturbs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from pilotage.clock import Clock
from pilotage.errors import PilotageError
from pilotage_agents.core.backoff import backoff
from pilotage_agents.core.routes.route_table import target_named
from pilotage_agents.router.route_edges import CopyPlaces, CopyTarget

log = structlog.get_logger()

Answer = TypeVar("Answer")

_FIRST, _LONGEST = timedelta(seconds=10), timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _Silence:
    """A place that gave no answer, so often in a row; it is left alone until a time."""

    in_a_row: int
    until: datetime
    why: str


class Places:
    """Asks places, by the targets' names; one that gives no answer is left alone for a while.

    A place that has not answered after `timeout_s` has not answered.
    """

    def __init__(self, places: CopyPlaces, clock: Clock, timeout_s: float) -> None:
        self._places = places
        self._clock = clock
        self._timeout_s = timeout_s
        self._failures: dict[str, _Silence] = {}

    async def ask(self, target: str, question: Callable[[CopyTarget], Awaitable[Answer]]) -> Answer | None:
        """Return what the place answers; None = it is left alone, or has not answered, and nothing is known."""
        if self.silence(target):
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await question(await self._places.open(target_named(target)))
        except (PilotageError, OSError, TimeoutError) as error:
            self._failed(target, str(error) or f"no answer within {self._timeout_s:g} s")
            return None
        self._failures.pop(target, None)
        return answer

    def silence(self, target: str) -> str:
        """Return why a place is left alone now; empty = it is not."""
        found = self._failures.get(target)
        return found.why if found is not None and self._clock() < found.until else ""

    def _failed(self, target: str, why: str) -> None:
        before = self._failures.get(target)
        failures = 1 if before is None else before.in_a_row + 1
        pause = backoff(failures, _FIRST, _LONGEST)
        self._failures[target] = _Silence(failures, self._clock() + pause, why)
        log.warning("place gives no answer", target=target, reason=why, again_s=pause.total_seconds())
