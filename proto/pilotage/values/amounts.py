"""Sizes of slots, nodes and requests: cores, memory and disk in MiB, GPUs.

Whole numbers, so that sums over a node never drift. Amounts are never negative: they are checked at the edges. A
requested 0 takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of each resource; memory and disk in MiB."""

    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0

    def fits_in(self, other: Amounts) -> bool:
        """Whether `other` has at least as much of everything."""
        return (
            self.cpus <= other.cpus
            and self.memory_mib <= other.memory_mib
            and self.disk_mib <= other.disk_mib
            and self.gpus <= other.gpus
        )

    def exceeding(self, other: Amounts) -> tuple[tuple[str, int, int], ...]:
        """Return (name, asked, offered) of everything of which `other` has too little."""
        pairs = (
            ("cpus", self.cpus, other.cpus),
            ("memory", self.memory_mib, other.memory_mib),
            ("disk", self.disk_mib, other.disk_mib),
            ("gpus", self.gpus, other.gpus),
        )
        return tuple(pair for pair in pairs if pair[1] > pair[2])

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sum, resource by resource."""
        return Amounts(
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_mib + other.disk_mib,
            self.gpus + other.gpus,
        )

    def __sub__(self, other: Amounts) -> Amounts:
        """Return the rest, resource by resource; `other` must fit."""
        # Not asserted here: in plain Python the check made matching 2 to 3 % slower. Callers that need it assert it.
        return Amounts(
            self.cpus - other.cpus,
            self.memory_mib - other.memory_mib,
            self.disk_mib - other.disk_mib,
            self.gpus - other.gpus,
        )


NOTHING = Amounts()
