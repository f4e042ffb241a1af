"""The cost of many task queues: 20,000 in 10,000 submit pools compared with 500.

Two servers with equally many jobs run on the same core and get calls in turns. Prints JSON lines; exits 1 if a budget
is exceeded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, at_least, measured
from harness.grid import (
    REQUEST_JOBS,
    SUBMIT,
    BenchGrid,
    LoadPilot,
    an_offer,
    bearer,
    job_requests,
    must_match,
    submission,
)
from harness.lhcb import SIMULATION
from harness.load import Request, Run, median_cpu_us
from harness.processes import resident_mb
from harness.setting import SHARING, Setting, bench, scratch, server_on_its_core, the_day
from pilotage.job_description import JobDescription

POOLS = 10_000
FEW_TASK_QUEUES = 500
JOBS = 200_000
TAGS = 100
TAGS_OF_A_SITE = 30
CPU_TIMES = (timedelta(hours=12), timedelta(days=2))
"""Two task queues a pool."""

PILOTS = 240
OUTSTANDING = 64
ROUNDS = 8
CALLS = 250
LEAST_RATIO = 0.5


def tree(sites: Sequence[str]) -> str:
    """Return a tree in which each site has some of the tags."""
    return json.dumps(
        {
            "sites": {
                site: {"ces": {"ce": {"queues": {"queue": {"Memory": 4000, "Tags": _tags_of(number)}}}}}
                for number, site in enumerate(sites)
            }
        }
    )


def _tags_of(site: int) -> list[str]:
    return [f"tag{(7 * site + number) % TAGS}" for number in range(TAGS_OF_A_SITE)]


def distinct_jobs(task_queues: int, jobs: int) -> list[JobDescription]:
    """Return about `jobs` jobs, spread evenly over the task queues, two of which share a pool."""
    return [
        JobDescription(
            "/cvmfs/lhcb.cern.ch/run",
            requirements={"Tags": (f"tag{37 * pool % TAGS}",), "Memory": 100 + pool // TAGS},
            cpu_time=cpu_time,
            count=max(1, jobs // task_queues),
        )
        for pool in range(task_queues // len(CPU_TIMES))
        for cpu_time in CPU_TIMES
    ]


class Side:
    """One of the two servers."""

    def __init__(self, grid: BenchGrid, kinds: Sequence[JobDescription]) -> None:
        self.grid = grid
        self.runs: list[Run] = []
        grid.put_tree(tree(grid.day.sites))
        user = bearer(grid.user_token("lbprods", SIMULATION))
        grid.run(SUBMIT, [Request(submission(kinds, SIMULATION).SerializeToString(), user)], 1)
        self._pilots: list[LoadPilot] = grid.pilots(PILOTS)

    def match(self, calls: int) -> None:
        """Match one job for each call, and record the run."""
        run = self.grid.run(REQUEST_JOBS, job_requests(self._pilots, calls, an_offer()), OUTSTANDING)
        must_match(run)
        self.runs.append(run)


def figures(setting: Setting) -> Iterator[Figure]:
    """Start both servers and measure in turns."""
    task_queues = setting.size(POOLS, 100) * len(CPU_TIMES)
    jobs = setting.size(JOBS, 4_000)
    with scratch() as folder, ExitStack() as stack:
        few, many = (
            Side(
                stack.enter_context(
                    closing(BenchGrid(stack.enter_context(server_on_its_core(folder / name, **SHARING)), the_day()))
                ),
                distinct_jobs(count, jobs),
            )
            for name, count in (("few", setting.size(FEW_TASK_QUEUES, 100)), ("many", task_queues))
        )
        for _ in range(1 + setting.size(ROUNDS, 2)):
            for side in (few, many):
                side.match(setting.size(CALLS, 50))
        few_us, many_us = (median_cpu_us(side.runs[1:]) for side in (few, many))
        yield measured("wide: CPU of a match with 500 task queues", few_us, "µs")
        yield measured("wide: CPU of a match with 20,000", many_us, "µs", pools=task_queues // len(CPU_TIMES))
        yield measured("wide: memory with 20,000 task queues", resident_mb(many.grid.server_pid), "MB")
        yield at_least("wide: match rate with 20,000 task queues to 500", few_us / many_us, "ratio", LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
