"""The end of the glidein as it comes near: what it makes due, each thing once."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Lifetime


class GlideinEnd:
    """First payloads are warned, then no more jobs are taken in, at last what still runs is evicted."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._warned = False
        self._evicted = False

    @property
    def is_announced(self) -> bool:
        """Whether payloads have been warned."""
        return self._warned

    @property
    def stop_margin_s(self) -> float:
        """Return for how long a pilot may go on after the eviction."""
        return self._lifetime.stop_margin_s

    def time_left_s(self, now: Moment) -> float:
        """Return how long the glidein goes on."""
        return self._lifetime.time_left_s(now) or 0.0

    def announce(self, now: Moment) -> bool:
        """Announce the end when it is time; returns whether that is just now, and payloads are to be warned."""
        is_due = not self._warned and now.boot_s >= self._lifetime.warn_boot_s()
        self._warned = self._warned or is_due
        return is_due

    def is_near(self, now: Moment) -> bool:
        """Whether no more jobs are to be taken in."""
        return now.boot_s >= self._lifetime.close_boot_s()

    def begin_eviction(self, now: Moment) -> bool:
        """Begin the eviction when it is time; returns whether that is just now."""
        is_due = not self._evicted and now.boot_s >= self._lifetime.evict_boot_s()
        self._evicted = self._evicted or is_due
        return is_due

    def alarms(self) -> Iterable[float]:
        """Return when something becomes due, on the boot clock; also what is past."""
        return (self._lifetime.warn_boot_s(), self._lifetime.close_boot_s(), self._lifetime.evict_boot_s())
