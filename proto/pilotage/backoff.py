"""Back-off: how long to wait after failures, and for how long a failed call is tried again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

Length = TypeVar("Length", float, timedelta)

_MAX_DOUBLINGS = 32


def backoff(failures: int, first: Length, longest: Length) -> Length:
    """Return the pause after `failures` failures in a row: `first`, doubled each time, up to `longest`.

    The first success ends the row; without a failure there is no pause.
    """
    if failures <= 0:
        return first * 0
    factor: int = 2 ** min(failures - 1, _MAX_DOUBLINGS)
    return min(first * factor, longest)


def jittered(pause_s: float, dice: float) -> float:
    """Return half of a pause plus a random part of the other half, so that many callers do not return together.

    `dice` is a random number from 0 to 1; 1 gives the whole pause.
    """
    return pause_s * (0.5 + dice / 2)


class Retry:
    """The tries of one call: they end after `timeout_s` in all, or after `max_tries`.

    With `is_last_at_end` a pause that would pass the end is cut short, so that one try follows at the end. Without it,
    no try follows such a pause.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float],
        *,
        max_tries: int | None = None,
        is_last_at_end: bool = False,
    ) -> None:
        self.failures = 0
        self._clock = clock
        self._ends_s = clock() + timeout_s
        self._max_tries = max_tries
        self._is_last_at_end = is_last_at_end

    @property
    def remaining_s(self) -> float:
        """How long the next try may take."""
        return max(0.0, self._ends_s - self._clock())

    def failed(self, pause_s: Callable[[int], float]) -> float | None:
        """Count a failure and return how long to wait before the next try; None = no try is left.

        `pause_s` gives the pause after a number of failures.
        """
        self.failures += 1
        left_s = self.remaining_s
        next_s = pause_s(self.failures)
        if self._is_last_at_end:
            next_s = min(next_s, left_s)
        is_over = left_s == 0 or (next_s >= left_s and not self._is_last_at_end)
        return None if is_over or self.failures == self._max_tries else next_s
