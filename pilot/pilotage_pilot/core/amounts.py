"""Amounts of what a node has: cores, memory, disk, GPUs.

Rules
-----
Amounts are never negative; what would make them so is refused before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """Cores, memory and scratch disk in MiB, GPUs."""

    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0

    def __post_init__(self) -> None:
        assert min(self.cpus, self.memory_mib, self.disk_mib, self.gpus) >= 0, f"negative amounts: {self}"

    def fits_in(self, other: Amounts) -> bool:
        """Whether `other` has at least as much of everything."""
        return (
            self.cpus <= other.cpus
            and self.memory_mib <= other.memory_mib
            and self.disk_mib <= other.disk_mib
            and self.gpus <= other.gpus
        )

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_mib + other.disk_mib,
            self.gpus + other.gpus,
        )

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.cpus - other.cpus,
            self.memory_mib - other.memory_mib,
            self.disk_mib - other.disk_mib,
            self.gpus - other.gpus,
        )


NOTHING = Amounts()
