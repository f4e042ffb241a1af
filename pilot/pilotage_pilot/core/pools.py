"""The pilot's list of submit pools: when it is read, and when a request carries it.

Rules
-----
The list is what a pilot asks with; the server's mapping decides. It can be long, so it does not travel with every
request.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage_pilot.core.events import Failure
from pilotage_pilot.core.instructions import ReadPools
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules

REREAD_AFTER_S = 10.0
"""A list that the server calls old is not read again sooner than this."""


class PoolList:
    """What the pilot knows of its queue's pools."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._pool_ids: tuple[str, ...] = ()
        self._ready = False
        self._read_boot_s = float("-inf")
        self._due_boot_s: float | None = None
        self._carry_boot_s = float("-inf")
        self._failures = 0

    @property
    def ready(self) -> bool:
        """Whether the list has been read."""
        return self._ready

    def read(self, pool_ids: tuple[str, ...], now: Moment) -> None:
        """Take a list that was read."""
        self._pool_ids = pool_ids
        self._ready = True
        self._failures = 0
        self._read_boot_s = now.boot_s
        self._carry_boot_s = now.boot_s

    def failed(self, failure: Failure, now: Moment) -> None:
        """Plan the next try after the list could not be read."""
        self._failures += 1
        self._due_boot_s = now.boot_s + failure.pause_s(self._failures)

    def grown_old(self) -> None:
        """Plan a fresh reading, for the server has other pools for the queue."""
        if self._due_boot_s is None:
            self._due_boot_s = self._read_boot_s + REREAD_AFTER_S

    def due(self, now: Moment) -> list[ReadPools]:
        """Read the list where it is time to."""
        if self._due_boot_s is None or now.boot_s < self._due_boot_s:
            return []
        self._due_boot_s = None
        return [ReadPools(fresh=self._ready)]

    def carried(self, now: Moment) -> tuple[str, ...]:
        """Return what the next request carries of the list."""
        if now.boot_s < self._carry_boot_s:
            return ()
        self._carry_boot_s = now.boot_s + self._rules.pools_every_s
        return self._pool_ids

    def alarms(self) -> Iterator[float]:
        """Yield when the list is to be read."""
        if self._due_boot_s is not None:
            yield self._due_boot_s
