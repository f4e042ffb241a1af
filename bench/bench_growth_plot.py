"""Rate and latency against the length of the queue, from 10,000 to ten million jobs, as figures and as a plot.

Four servers run on the same core and get calls in turns. Prints JSON lines and writes
docs/reference/speed.svg at full size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, measured
from harness.grid import REQUEST_JOBS, an_offer, job_requests
from harness.grown_grids import SHORTEST, GrownGrid, grown_grids
from harness.load import Run, median_rate
from harness.plot import Panel, drawing
from harness.setting import Setting, bench, scratch

TIMES = (1, 10, 100, 1000)
ROUNDS = 4
CALLS = 500
STEADY_CALLS, STEADY_PER_S = 2_000, 1_000.0
PLOT = Path(__file__).parents[1] / "docs" / "reference" / "speed.svg"
LENGTH = "jobs in the queue"


def figures(setting: Setting) -> Iterator[Figure]:
    """Measure at each length."""
    all_times = [setting.size(times) if times > 1 else 1 for times in TIMES]
    with scratch() as folder, grown_grids(setting, folder, all_times) as grids:
        for _ in range(1 + setting.size(ROUNDS, 2)):
            for grown in grids:
                grown.match(setting.size(CALLS, 50))
        lengths = [float(times * SHORTEST) for times in TIMES]
        rates = dict(zip(lengths, (median_rate(grown.runs[1:]) for grown in grids), strict=True))
        slowest = dict(zip(lengths, (_steady(setting, grown).percentile_ms(99) for grown in grids), strict=True))
    for length in lengths:
        yield measured(f"growth: one job a call at {length:,.0f} jobs", rates[length], "jobs/s")
        yield measured(f"growth: 99 % of calls at {length:,.0f} jobs", slowest[length], "ms")
    if setting.scale >= 1:
        rate = Panel("one job a call: jobs a second", LENGTH, rates)
        latency = Panel("1,000 calls a second: 99 % within (ms)", LENGTH, slowest)
        PLOT.write_text(drawing([rate, latency]))


def _steady(setting: Setting, grown: GrownGrid) -> Run:
    requests = job_requests(grown.pilots, setting.size(STEADY_CALLS, 50), an_offer())
    return grown.grid.steady(REQUEST_JOBS, requests, STEADY_PER_S)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
