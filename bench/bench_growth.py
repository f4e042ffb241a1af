"""The cost of a queue of ten million jobs and of ten thousand: CPU time of a match, memory, time to start.

Two servers with queues of the same shape run on the same core and get calls in turns. Prints JSON lines;
exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most, measured
from harness.grown_grids import GrownGrid, grown_grids
from harness.load import median_cpu_us
from harness.processes import resident_mb
from harness.setting import Setting, bench, scratch

TIMES = 1000
ROUNDS = 8
CALLS = 250
SETTLING_S = 6.0
"""The warm-up of the long queue: a server that has just started counts its waiting jobs once."""
GROWTH_BUDGET, MEMORY_BUDGET_MB, MORE_MEMORY_BUDGET_MB, START_BUDGET_S = 1.2, 600.0, 200.0, 5.0


def figures(setting: Setting) -> Iterator[Figure]:
    """Grow the queue and measure all."""
    start_budget_s = START_BUDGET_S / machine_speed()
    with scratch() as folder, grown_grids(setting, folder, (1, setting.size(TIMES, 4))) as (short, long):
        _settle(setting, long)
        for _ in range(1 + setting.size(ROUNDS, 2)):
            for grown in (short, long):
                grown.match(setting.size(CALLS, 50))
        last_rounds = -setting.size(ROUNDS, 2)
        short_us, long_us = (median_cpu_us(grown.runs[last_rounds:]) for grown in (short, long))
        short_mb, long_mb = map(_resident_mb, (short, long))
        yield measured("growth: CPU of a match at 10,000 jobs", short_us, "µs")
        yield measured("growth: CPU of a match at 10 million jobs", long_us, "µs")
        yield at_most("growth: CPU of a match, long queue to short", long_us / short_us, "ratio", GROWTH_BUDGET)
        yield at_most("growth: memory at 10 million jobs", long_mb, "MB", MEMORY_BUDGET_MB)
        yield at_most("growth: memory over that at 10,000", long_mb - short_mb, "MB", MORE_MEMORY_BUDGET_MB)
        yield at_most("growth: start with 10 million jobs", long.start_s, "s", start_budget_s)


def _settle(setting: Setting, grown: GrownGrid) -> None:
    until_s = time.perf_counter() + setting.seconds(SETTLING_S)
    while time.perf_counter() < until_s:
        grown.match(setting.size(CALLS, 50))


def _resident_mb(grown: GrownGrid) -> float:
    return resident_mb(grown.grid.server_pid)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
