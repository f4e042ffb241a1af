"""What a pilot of a queue offers to jobs, and what its queue allows, read from the queue's effective values.

Rules
-----
A value that is not there, or is not a number ("auto"), is not known: it bounds nothing and is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.parameters import SHIPPED
from pilotage.resources import NotAnAmount, amount_of


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a pilot or of a job's request, memory and disk in MiB; None = not known."""

    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None

    def holds(self, request: Shape) -> int:
        """Return how many jobs of this request run at once in a pilot of this shape.

        A job takes at least one core. A pilot whose cores are not known counts as good for one job.
        """
        bounds = [1] if self.cpus is None else [self.cpus // max(1, request.cpus or 0)]
        others = (
            (self.memory_mib, request.memory_mib),
            (self.disk_mib, request.disk_mib),
            (self.gpus, request.gpus),
        )
        bounds += [offered // asked for offered, asked in others if offered is not None and asked]
        return min(bounds)

    def less(self, request: Shape, jobs: int) -> Shape:
        """Return what is left when `jobs` of this request, which it holds, are in it."""
        return Shape(
            _less(self.cpus, max(1, request.cpus or 0) * jobs),
            _less(self.memory_mib, (request.memory_mib or 0) * jobs),
            _less(self.disk_mib, (request.disk_mib or 0) * jobs),
            _less(self.gpus, (request.gpus or 0) * jobs),
        )


def _less(offered: int | None, taken: int) -> int | None:
    return None if offered is None else offered - taken


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What the tree says of a queue and a director needs; None = not said.

    `ce_type` is folded. `max_total` and `max_waiting` count pilots, in all and in the batch queue.
    """

    pilot: Shape
    ce_type: str = ""
    wall_time_s: int | None = None
    max_total: int | None = None
    max_waiting: int | None = None


def queue_facts(parameters: Mapping[str, Value]) -> QueueFacts:
    """Return what the effective values of a queue say."""
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
