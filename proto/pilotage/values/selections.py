"""Selections of jobs: a cluster, a part of it, or a single job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSelection:
    """A cluster, its processes from the first to the last one, or a single job.

    Without processes, `id` is that of a cluster or of any other job, which is then meant alone.
    """

    id: int
    processes: tuple[int, int] | None = None

    def __str__(self) -> str:
        match self.processes:
            case None:
                return str(self.id)
            case (first, last) if first == last:
                return f"{self.id}.{first}"
            case (first, last):
                return f"{self.id}.{first}-{last}"
