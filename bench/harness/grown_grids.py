"""Servers side by side that differ only in the length of their queues, to be measured in turns."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.figures import progress
from harness.grid import REQUEST_JOBS, BenchGrid, LoadPilot, an_offer, job_requests, must_match
from harness.grown_queue import grow
from harness.load import Run
from harness.setting import SHARING, Setting, server_on_its_core, the_day

SHORTEST = 10_000
"""Jobs in the shortest queue, which the others are copies of."""

PILOTS = 240
OUTSTANDING = 64


@dataclass(slots=True)
class GrownGrid:
    """A server whose queue is `times` as long as the shortest one.

    `start_s` is the time from the start of its process to its first match.
    """

    times: int
    grid: BenchGrid
    pilots: Sequence[LoadPilot]
    start_s: float
    runs: list[Run] = field(default_factory=list)

    def match(self, calls: int) -> None:
        """Match one job for each call, and record the run."""
        run = self.grid.run(REQUEST_JOBS, job_requests(self.pilots, calls, an_offer()), OUTSTANDING)
        must_match(run)
        self.runs.append(run)


@contextmanager
def grown_grids(setting: Setting, folder: Path, all_times: Sequence[int]) -> Iterator[list[GrownGrid]]:
    """Run servers with queues of these multiples of the shortest length until the end of the block."""
    base = folder / "base"
    pilots = _make_base(setting, base)
    with ExitStack() as servers:
        grids = []
        for number, times in enumerate(all_times):
            data = folder / str(number)
            shutil.copytree(base, data)
            progress(f"the queue grows to {times} times its length")
            grow(data, times)
            began_s = time.perf_counter()
            server = servers.enter_context(server_on_its_core(data, **SHARING))
            grid = servers.enter_context(closing(BenchGrid(server, the_day())))
            must_match(grid.run(REQUEST_JOBS, job_requests(pilots, 1, an_offer()), 1))
            grids.append(GrownGrid(times, grid, pilots, time.perf_counter() - began_s))
        yield grids


def _make_base(setting: Setting, data: Path) -> list[LoadPilot]:
    day = the_day()
    with server_on_its_core(data) as server, closing(BenchGrid(server, day)) as grid:
        grid.put_tree(day.tree())
        grid.submit_day(setting.size(SHORTEST, 2_000))
        pilots = grid.pilots(PILOTS)
        server.stop()
    return pilots
