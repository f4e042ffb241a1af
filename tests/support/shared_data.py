"""The folder of the real input that some tests read, and jobs of real sites from the Parallel Workloads Archive."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = "PILOTAGE_TEST_DATA"


def shared_data_dir() -> Path | None:
    """Return the folder of the real input; None = neither the environment nor the parent of the checkout has it."""
    named = os.environ.get(ENVIRONMENT)
    folder = Path(named) if named else Path(__file__).parents[3] / "shared"
    return folder if folder.is_dir() else None


LPC = "LPC-EGEE-2004-1.2-cln.swf.gz"
"""A grid site's single-core jobs (E. Medernach, LPC Clermont-Ferrand)."""

METACENTRUM = "metacentrum-wagap-2013.part1.swf.gz"
"""A national grid's jobs, of one core and of many."""

_SUBMITTED, _RUN, _CORES = 1, 3, 4


class TracedJob(NamedTuple):
    """A job of a log: seconds from the first job to its submission, run time, and cores."""

    came_s: float
    run_s: float
    cores: int


def traced_jobs(path: Path) -> Iterator[TracedJob]:
    """Yield the jobs of a log in its order, without those that never ran."""
    first_s = None
    with gzip.open(path, "rt") as lines:
        for line in lines:
            if line.startswith(";") or not line.strip():
                continue
            fields = line.split()
            came_s, run_s, cores = float(fields[_SUBMITTED]), float(fields[_RUN]), int(fields[_CORES])
            first_s = came_s if first_s is None else first_s
            if run_s > 0 and cores > 0:
                yield TracedJob(came_s - first_s, run_s, cores)
