"""Real single-core and multicore jobs together, more of both than a simulated farm has cores for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from support.traces import LPC, METACENTRUM, TracedJob, traced_jobs

CORES = 16
WIDTH = 8
FULL_SIZE = 1000
"""Nodes for which all jobs are taken; for fewer, as many fewer of them."""

HURRY = 800.0
"""So much faster jobs come than they did, so that jobs of a few hundred cores keep thousands busy."""

SINGLE_CORE_ROUNDS = 6
"""So often the log of single-core jobs is gone through."""

MULTICORE_FROM_S = 8 * 3600.0
"""When the first multicore job comes: single-core jobs have the farm by then."""


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """The jobs for a farm of so many nodes: LPC's of one core, and MetaCentrum's of many, each of which takes eight.

    That is what sites see of them whose multicore slots are all of one width.
    """

    traces: Path
    nodes: int

    def jobs(self) -> Iterator[TracedJob]:
        """Yield the jobs."""
        single_core = list(self._part_of(LPC))
        round_s = single_core[-1].came_s
        for number in range(SINGLE_CORE_ROUNDS):
            yield from (job._replace(came_s=job.came_s + number * round_s) for job in single_core)
        for job in self._part_of(METACENTRUM):
            if job.cores > 1:
                yield TracedJob(MULTICORE_FROM_S + job.came_s, job.run_s, WIDTH)

    def _part_of(self, log: str) -> Iterator[TracedJob]:
        every = max(1, FULL_SIZE // self.nodes)
        for job in islice(traced_jobs(self.traces / log), 0, None, every):
            yield job._replace(came_s=job.came_s / HURRY)
