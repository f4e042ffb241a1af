"""The targets of a job router; a failing target does not disturb the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from pilotage.backoff import backoff
from pilotage.clock import Clock
from pilotage.errors import PilotageError
from pilotage_agents.router.core.table import parse_target
from pilotage_agents.router.ports import RoutedJobTarget, TargetOpener
from pilotage_agents.router.tasks import progress_timeout

log = structlog.get_logger()

Answer = TypeVar("Answer")

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)

_LONGEST_REASON = 300

_OPENING = "opening"
"""The first request to a target; while it fails, there is no other."""

_LONGEST_OPENING_PAUSE = timedelta(minutes=1)
"""The longest pause between attempts to open a target: a look at the tree or a CA file costs little."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A request that failed so often in a row; it is not repeated until a time."""

    in_a_row: int
    until: datetime
    why: str


class TargetPool:
    """Sends requests to targets by name, and pauses after failures.

    A target that neither answers nor makes progress within `timeout_s` has failed. A failure of a request `about`
    something, such as the files of one job, pauses only requests about that.
    """

    def __init__(self, opener: TargetOpener, clock: Clock, timeout_s: float) -> None:
        self._opener = opener
        self._clock = clock
        self._timeout_s = timeout_s
        self._failures: dict[tuple[str, str], _Failure] = {}
        self._opened: set[str] = set()

    async def ask(
        self, target: str, question: Callable[[RoutedJobTarget], Awaitable[Answer]], *, about: str = ""
    ) -> Answer | None:
        """Return the target's answer; None = it is paused or has failed."""
        if self._pause_reason(target, about):
            return None
        opened = await self._answer(target, _OPENING, lambda: self._opener.open(parse_target(target)))
        if opened is None:
            self._opened.discard(target)
            return None
        self._opened.add(target)
        return await self._answer(target, about, lambda: question(opened))

    async def open(self, target: str) -> None:
        """Open a target, unless it is paused; `obstacle` says why it is not open."""
        await self.ask(target, _nothing, about=_OPENING)

    def is_open(self, target: str) -> bool:
        """Whether the last attempt to open the target succeeded."""
        return target in self._opened

    def obstacle(self, target: str, about: str = "") -> str:
        """Return why there is no request to the target about something now; empty = there may be one."""
        if reason := self._pause_reason(target, about):
            return f"its target gives no answer: {reason}" if self.is_open(target) else _closed(reason)
        if self.is_open(target):
            return ""
        failure = self._failures.get((target, _OPENING))
        return _closed("it was not tried yet" if failure is None else failure.why)

    async def _answer(self, target: str, about: str, question: Callable[[], Awaitable[Answer]]) -> Answer | None:
        try:
            async with progress_timeout(self._timeout_s):
                answer = await question()
        except (PilotageError, OSError, TimeoutError) as error:
            self._failed(target, about, str(error) or f"no answer within {self._timeout_s:g} s")
            return None
        except Exception as error:
            # An unexpected error of one request, such as one job's files, must not stop the others.
            log.exception("unexpected error in a request to a target", target=target, about=about)
            self._failed(target, about, f"unexpected error: {error!r:.{_LONGEST_REASON}}")
            return None
        self._failures.pop((target, about), None)
        return answer

    def _pause_reason(self, target: str, about: str) -> str:
        """Return why requests are paused now; empty = they are not."""
        now = self._clock()
        found = (self._failures.get((target, each)) for each in (_OPENING, "", about))
        return next((each.why for each in found if each is not None and now < each.until), "")

    def _failed(self, target: str, about: str, why: str) -> None:
        now = self._clock()
        before = self._failures.get((target, about))
        failures = 1 if before is None else before.in_a_row + 1
        pause = backoff(failures, _FIRST_PAUSE, _LONGEST_OPENING_PAUSE if about == _OPENING else _LONGEST_PAUSE)
        # Forget failures that no later request has repeated.
        self._failures = {key: each for key, each in self._failures.items() if now < each.until + 2 * _LONGEST_PAUSE}
        self._failures[target, about] = _Failure(failures, now + pause, why)
        log.warning("target gives no answer", target=target, about=about, reason=why, again_s=pause.total_seconds())


async def _nothing(_: RoutedJobTarget) -> None:
    """Do nothing: opening the target is all."""


def _closed(why: str) -> str:
    return f"its target cannot be opened: {why}"
