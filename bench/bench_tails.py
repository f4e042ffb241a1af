"""Where the time of the slowest 1 % of calls goes: pilots request jobs at a steady rate, as in `bench_rates`.

The server records the stages of each call, which costs it some time, so `bench_rates` has the budgets of latencies.
Prints JSON lines, and to standard error a table of the stages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import watched_server
from harness.empty_call import REFERENCE_PER_S, empty_server
from harness.figures import Figure, measured, progress
from harness.grid import REQUEST_JOBS, BenchGrid, an_offer, job_requests
from harness.setting import SHARING, Setting, bench, scratch, server_on_its_core, the_day
from harness.stages import Stages, numbered
from harness.waiting_pilots import waiting_pilots

JOBS = 1_000_000
PILOTS, IDLE_PILOTS = 2_000, 1_000
WARM_UP = 2_000
OUTSTANDING = 64
STEADY_PER_S = 1_000
SECONDS = 20.0


def figures(setting: Setting) -> Iterator[Figure]:
    """Start the servers, load one, and read its records after its end."""
    with empty_server() as empty, scratch() as folder:
        records = folder / "records.json"
        with (
            server_on_its_core(
                folder / "server",
                module=watched_server.__name__,
                environment={watched_server.RECORDS: str(records), "PYTHONPATH": str(Path(__file__).parent)},
                **SHARING,
            ) as server,
            closing(BenchGrid(server, the_day())) as grid,
        ):
            grid.put_tree(grid.day.tree())
            grid.submit_day(setting.size(JOBS))
            pilots = grid.pilots(setting.size(PILOTS, 2 * len(grid.day.sites)))
            calls_per_s = STEADY_PER_S * empty.run(setting.size(6_000, 600)).calls_per_s / REFERENCE_PER_S
            calls = round(setting.seconds(SECONDS) * calls_per_s)
            nothing = empty.steady(calls, calls_per_s)
            with waiting_pilots(server.address, grid.pilots(setting.size(IDLE_PILOTS))):
                grid.run(REQUEST_JOBS, job_requests(pilots, setting.size(WARM_UP, 100), an_offer()), OUTSTANDING)
                requests = numbered(job_requests(pilots, calls, an_offer()))
                run = grid.steady(REQUEST_JOBS, requests, calls_per_s)
            server.stop()
        stages = Stages(run, records)
    more = {"calls_per_s": round(calls_per_s), "refused": run.refused}
    for percent in (50, 99):
        more_of_it = {**more, "empty_ms": round(nothing.percentile_ms(percent), 2)}
        yield measured(f"tails: {percent} % of calls", run.percentile_ms(percent), "ms", **more_of_it)
    for name, median_ms, slowest_ms in stages.rows():
        yield measured(f"tails: {name}", slowest_ms, "ms", median_ms=round(median_ms, 3))
    progress(f"stages\n{stages.table()}")


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
