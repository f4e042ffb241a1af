"""Warnings on received messages: others decide how many there are, so only some are logged."""

from __future__ import annotations

from typing import Any

import structlog

from pilotage.clock import BootClock, boot_time_s

WARN_EVERY_S = 60.0


class LimitedWarning:
    """A warning that is logged at most once a minute; `unlogged` counts the warnings since the last line."""

    def __init__(self, event: str, boot_clock: BootClock = boot_time_s) -> None:
        self._event = event
        self._boot_clock = boot_clock
        self._next_s = 0.0
        self._unlogged = 0

    def __call__(self, **fields: Any) -> None:
        """Log the warning with these fields, or count it."""
        now_s = self._boot_clock()
        if now_s < self._next_s:
            self._unlogged += 1
            return
        structlog.get_logger().warning(self._event, unlogged=self._unlogged, **fields)
        self._next_s, self._unlogged = now_s + WARN_EVERY_S, 0
