"""How a call is made again that an overloaded server refused: no sooner than told, spread by chance, not for ever.

A refused call has not been read, so that any may be made again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import OverloadedError

MOST_TRIES = 8
LONGEST_SPREAD_S = 15.0
"""No pause is longer by chance than it would have to be by more than this."""


class BackOff:
    """The tries of one call, which may take `timeout_s` in all; `dice` give numbers from 0 to 1."""

    def __init__(
        self, timeout_s: float, clock: BootClock = boot_time_s, dice: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._until_s = clock() + timeout_s
        self._dice = dice
        self._tries = 0

    @property
    def left_s(self) -> float:
        """How long the next try may take."""
        return max(0.0, self._until_s - self._clock())

    def pause_s(self, refused: OverloadedError) -> float:
        """Return how long to wait before the next try; raises OverloadedError where there is to be none."""
        self._tries += 1
        told_s = refused.retry_after_s
        spread_s = min(LONGEST_SPREAD_S, told_s * 2.0**self._tries)
        pause_s = told_s + self._dice() * spread_s
        if self._tries == MOST_TRIES or pause_s >= self.left_s:
            tries = "once" if self._tries == 1 else f"{self._tries} times"
            raise OverloadedError(f"{refused}; it refused this one {tries}", told_s) from refused
        return pause_s
