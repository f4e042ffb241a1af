"""How long a pilot goes on without work, and without a word of its server.

Rules
-----
A pilot with work has all the patience. One that has none asks once more, in the end, before it gives up.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules

NEVER = float("inf")


class Patience:
    """The patience of one pilot."""

    def __init__(self, rules: Rules, now: Moment) -> None:
        self._rules = rules
        self._idle_boot_s: float | None = now.boot_s

    def watch(self, *, working: bool, now: Moment) -> bool:
        """Note whether there is work; returns whether there has just ceased to be."""
        if working:
            self._idle_boot_s = None
            return False
        if self._idle_boot_s is not None:
            return False
        self._idle_boot_s = now.boot_s
        return True

    def idle_end_boot_s(self) -> float:
        """Return when it has been without work for too long; infinity = never."""
        if self._rules.max_idle_s is None or self._idle_boot_s is None:
            return NEVER
        return self._idle_boot_s + self._rules.max_idle_s

    def unreachable_boot_s(self, heard_boot_s: float) -> float:
        """Return when the server, last heard at `heard_boot_s`, has been silent for too long; infinity = never."""
        return NEVER if self._idle_boot_s is None else heard_boot_s + self._rules.unreachable_s

    def wait_s(self, now: Moment) -> float:
        """Return how long a request may wait for a job."""
        return min(self._rules.wait_s, max(0.0, self.idle_end_boot_s() - now.boot_s))

    def alarms(self, heard_boot_s: float) -> Iterator[float]:
        """Yield when patience ends."""
        yield self.idle_end_boot_s()
        yield self.unreachable_boot_s(heard_boot_s)
