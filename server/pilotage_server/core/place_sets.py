"""Sets of small numbers as integers, one bit each, and the places that task queues have in such sets.

Rules
-----
What two sets have in common is one operation, however many there are. A place is given again when who had it is gone:
`changes` says which places have another meaning than before, so that who keeps a set can bring it up to date.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pilotage_server.core.change_log import ChangeLog

EVERYWHERE: Final = -1
"""The set of all places."""


def set_of(places: Iterable[int]) -> int:
    """Return the set of these places."""
    chosen = list(places)
    if not chosen:
        return 0
    octets = bytearray((max(chosen) >> 3) + 1)
    for place in chosen:
        octets[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(octets, "little")


class Places:
    """Places that are given, and given again when they have come back."""

    def __init__(self) -> None:
        self.changes: ChangeLog[int] = ChangeLog()
        self._free: list[int] = []
        self._given = 0

    def give(self) -> int:
        """Return a place that nobody has."""
        if self._free:
            place = self._free.pop()
        else:
            place = self._given
            self._given += 1
        self.changes.note(place)
        return place

    def take_back(self, place: int) -> None:
        """Let a place be nobody's."""
        self._free.append(place)
        self.changes.note(place)
