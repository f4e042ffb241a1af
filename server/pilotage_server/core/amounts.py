"""Sizes of slots, nodes and requests: cores, memory and disk in MiB, GPUs.

Rules
-----
Whole numbers only, so that sums over a node never drift. An amount may be missing its say in a request: 0 asks
nothing and takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of each resource; memory and disk in MiB."""

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
        """Return what is left, resource by resource."""
        return Amounts(
            self.cpus - other.cpus,
            self.memory_mib - other.memory_mib,
            self.disk_mib - other.disk_mib,
            self.gpus - other.gpus,
        )
