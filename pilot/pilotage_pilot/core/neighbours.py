"""What the slots of a node show each other: each one's shared attributes under its number.

Rules
-----
What is shown is a value, as of the last change; in its own ad a slot finds what the ad says now. Source: HTCondor
manual, STARTD_SLOT_ATTRS.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads import AdValue, Expression
from pilotage.folding import fold, folded_set
from pilotage_pilot.core.slot_facts import READINGS, SlotFacts

_RESTLESS = folded_set(READINGS)


class Neighbours:
    """What slots show: the attributes named in `shared`."""

    def __init__(self, shared: tuple[str, ...]) -> None:
        self.shared = shared
        self.said: dict[str, AdValue] = {}
        """All that is shown, by the names that it has in the slots' ads."""

    def show(self, slot: SlotFacts, shown: Mapping[str, AdValue | None]) -> dict[str, AdValue | None]:
        """Take in what a slot shows, None = nothing; returns what that changes in the others' ads."""
        changes = {
            f"{prefix}{attribute}": value
            for attribute, value in shown.items()
            for prefix in slot.prefixes
            if not _same(self.said.get(f"{prefix}{attribute}"), value)
        }
        for name, value in changes.items():
            if value is None:
                del self.said[name]
            else:
                self.said[name] = value
        return changes

    def hide(self, slot: SlotFacts) -> dict[str, AdValue | None]:
        """Forget what a slot shows; returns what that changes in the others' ads."""
        return self.show(slot, dict.fromkeys(self.shared))

    def seen_by(self, slot: SlotFacts) -> dict[str, AdValue]:
        """Return what a slot's own ad says of all slots, itself among them."""
        return self.said | {f"{prefix}{name}": Expression(name) for name in self.shared for prefix in slot.prefixes}

    def matter(self, slot: SlotFacts, changes: Mapping[str, AdValue | None]) -> bool:
        """Say whether any of the changes is more than another load or idle time."""
        restless = {f"{prefix}{name}" for name in self.shared if fold(name) in _RESTLESS for prefix in slot.prefixes}
        return not changes.keys() <= restless


def _same(before: AdValue | None, after: AdValue | None) -> bool:
    return type(before) is type(after) and before == after
