"""When the pilot looks at its node for its slots' sake.

Rules
-----
One look at a time. A policy needs them often; without one they are for people to see.
"""

from __future__ import annotations

from pilotage_pilot.core.instructions import SampleNode
from pilotage_pilot.core.moment import Moment

NEVER = float("inf")


class NodeLooks:
    """The rhythm of a pilot's looks at its node; `every_s` in seconds."""

    def __init__(self, every_s: float, now: Moment) -> None:
        self._every_s = every_s
        self._next_boot_s = now.boot_s

    def due(self, now: Moment) -> list[SampleNode]:
        """Look at the node where it is time to."""
        if now.boot_s < self._next_boot_s:
            return []
        self._next_boot_s = NEVER
        return [SampleNode()]

    def looked(self, now: Moment) -> None:
        """Note that a look has brought something."""
        self._next_boot_s = now.boot_s + self._every_s

    def alarm_boot_s(self) -> float:
        """Return when the next look is due, on the boot clock; infinity = when the last one has brought something."""
        return self._next_boot_s
