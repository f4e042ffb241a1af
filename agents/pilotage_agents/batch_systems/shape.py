"""The size of a queue's pilots and the limits of the queue, from its effective values.

A value that is missing or not a number ("auto") is not known: it limits nothing and is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.job_description import Value
from pilotage.resources.parameters import SHIPPED
from pilotage.text import fold
from pilotage.units import NotAnAmount, amount_of
from pilotage.values.amounts import Amounts


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a pilot, memory and disk in MiB; None = not known."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None

    @classmethod
    def of(cls, amounts: Amounts) -> Shape:
        """Return the shape with these amounts."""
        return cls(amounts.cpus, amounts.memory_mib, amounts.disk_mib, amounts.gpus)

    def holds(self, request: Amounts) -> int:
        """Return how many jobs of this request fit at once.

        A job takes at least one core. A pilot with an unknown number of cores takes one job.
        """
        bounds = [1] if self.cpus is None else [self.cpus // max(1, request.cpus)]
        others = (
            (self.memory_mib, request.memory_mib),
            (self.disk_mib, request.disk_mib),
            (self.gpus, request.gpus),
        )
        bounds += [offered // asked for offered, asked in others if offered is not None and asked]
        return min(bounds)

    def less(self, request: Amounts, jobs: int) -> Shape:
        """Return what is left with `jobs` of this request, which must fit."""
        return Shape(
            _less(self.cpus, max(1, request.cpus) * jobs),
            _less(self.memory_mib, request.memory_mib * jobs),
            _less(self.disk_mib, request.disk_mib * jobs),
            _less(self.gpus, request.gpus * jobs),
        )


def _less(offered: int | None, taken: int) -> int | None:
    return None if offered is None else offered - taken


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The values of a queue that a director needs; None = not in the tree.

    `ce_type` is folded. `max_total` and `max_waiting` count pilots, in all and in the batch queue.
    """

    pilot: Shape
    ce_type: str = ""
    wall_time_s: int | None = None
    max_total: int | None = None
    max_waiting: int | None = None


def queue_facts(parameters: Mapping[str, Value]) -> QueueFacts:
    """Return the facts from the effective values of a queue."""
    by_name = {fold(name): (name, value) for name, value in parameters.items()}

    def amount(name: str) -> int | None:
        spelled, value = by_name.get(fold(name), (name, ""))
        declaration = SHIPPED.get(spelled)
        found = amount_of(value, declaration.unit if declaration else None)
        return None if isinstance(found, NotAnAmount) or found < 0 else int(found)

    _, ce_type = by_name.get("cetype", ("", ""))
    return QueueFacts(
        pilot=Shape(amount("CPUs"), amount("Memory"), amount("Disk"), amount("GPUs")),
        ce_type=fold(ce_type) if isinstance(ce_type, str) else "",
        wall_time_s=amount("MaxWallTime"),
        max_total=amount("MaxTotalJobs"),
        max_waiting=amount("MaxWaitingJobs"),
    )
