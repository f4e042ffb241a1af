"""The places that copies go to, as a router asks them: each by itself, so that one that fails disturbs no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from pilotage.clock import Clock
from pilotage.errors import PilotageError
from pilotage_agents.core.backoff import backoff
from pilotage_agents.core.routes.route_table import target_named
from pilotage_agents.router.progress import while_it_moves
from pilotage_agents.router.route_edges import CopyPlaces, CopyTarget

log = structlog.get_logger()

Answer = TypeVar("Answer")

_FIRST, _LONGEST = timedelta(seconds=10), timedelta(minutes=5)

_LONGEST_REASON = 300

_OPENING = "opening"
"""What a place is asked for first; where that fails, it is asked nothing else."""

_OPENED_WITHIN = timedelta(minutes=1)
"""So soon a place is opened once it can be: a look at the tree or the server's authorities costs little."""


@dataclass(frozen=True, slots=True)
class _Silence:
    """A question that was not answered, so often in a row; it is not asked until a time."""

    in_a_row: int
    until: datetime
    why: str


class Places:
    """Asks places, by the targets' names; one that gives no answer is left alone for a while.

    A place that has not answered after `timeout_s`, nor moved a file on in that time, has not answered. Where it is
    asked `about` something of its own, such as one copy's files, a failure speaks of that alone.
    """

    def __init__(self, places: CopyPlaces, clock: Clock, timeout_s: float) -> None:
        self._places = places
        self._clock = clock
        self._timeout_s = timeout_s
        self._failures: dict[tuple[str, str], _Silence] = {}
        self._opened: set[str] = set()

    async def ask(
        self, target: str, question: Callable[[CopyTarget], Awaitable[Answer]], *, about: str = ""
    ) -> Answer | None:
        """Return what the place answers; None = it is left alone, or has not answered, and nothing is known."""
        if self._silence(target, about):
            return None
        place = await self._answer(target, _OPENING, lambda: self._places.open(target_named(target)))
        if place is None:
            self._opened.discard(target)
            return None
        self._opened.add(target)
        return await self._answer(target, about, lambda: question(place))

    async def open(self, target: str) -> None:
        """Open a place, unless it is left alone; where that cannot be, its `obstacle` says why."""
        await self.ask(target, _nothing, about=_OPENING)

    def is_open(self, target: str) -> bool:
        """Whether a place could be opened when that was tried last."""
        return target in self._opened

    def obstacle(self, target: str, about: str = "") -> str:
        """Return why a place is not to be asked about something now; empty = it may be asked."""
        if silence := self._silence(target, about):
            return f"its target gives no answer: {silence}" if self.is_open(target) else _closed(silence)
        if self.is_open(target):
            return ""
        failure = self._failures.get((target, _OPENING))
        return _closed("nobody has tried it yet" if failure is None else failure.why)

    async def _answer(self, target: str, about: str, question: Callable[[], Awaitable[Answer]]) -> Answer | None:
        try:
            async with while_it_moves(self._timeout_s):
                answer = await question()
        except (PilotageError, OSError, TimeoutError) as error:
            self._failed(target, about, str(error) or f"no answer within {self._timeout_s:g} s")
            return None
        except Exception as error:
            # What nobody has foreseen of one question, such as one copy's files, is no reason to ask nothing else.
            log.exception("question to a place met an error of the router's own", target=target, about=about)
            self._failed(target, about, f"an error of the router's own: {error!r:.{_LONGEST_REASON}}")
            return None
        self._failures.pop((target, about), None)
        return answer

    def _silence(self, target: str, about: str) -> str:
        """Return why a place is left alone now, or not asked about something; empty = it may be asked."""
        now = self._clock()
        found = (self._failures.get((target, each)) for each in (_OPENING, "", about))
        return next((each.why for each in found if each is not None and now < each.until), "")

    def _failed(self, target: str, about: str, why: str) -> None:
        now = self._clock()
        before = self._failures.get((target, about))
        failures = 1 if before is None else before.in_a_row + 1
        pause = backoff(failures, _FIRST, _OPENED_WITHIN if about == _OPENING else _LONGEST)
        # What nobody has asked about again since is over.
        self._failures = {key: each for key, each in self._failures.items() if now < each.until + 2 * _LONGEST}
        self._failures[target, about] = _Silence(failures, now + pause, why)
        log.warning("place gives no answer", target=target, about=about, reason=why, again_s=pause.total_seconds())


async def _nothing(_: CopyTarget) -> None:
    """Ask nothing of a place but that it is there."""


def _closed(why: str) -> str:
    return f"its target cannot be opened: {why}"
