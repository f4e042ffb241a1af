"""Selections of jobs: a workflow, a cluster, a part of a cluster, or a single job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSelection:
    """A workflow, a cluster, its processes from the first to the last one, or a single job.

    Without processes, `id` is that of a cluster or of any other job, which is then meant alone. With `workflow` it is
    that of a workflow, and there are no processes.
    """

    id: int
    processes: tuple[int, int] | None = None
    workflow: bool = False

    def __str__(self) -> str:
        if self.workflow:
            return f"w{self.id}"
        match self.processes:
            case None:
                return str(self.id)
            case (first, last) if first == last:
                return f"{self.id}.{first}"
            case (first, last):
                return f"{self.id}.{first}-{last}"
