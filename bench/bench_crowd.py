"""The cost of idle pilots and leases: 20,000 pilots in long polls and 50,000 leases on one server.

It measures the time from a submission until a waiting pilot has reported that the job runs, and the server's memory.
Prints JSON lines; exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import queue
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most, measured, progress
from harness.grid import (
    REPORT_STATE,
    REQUEST_JOBS,
    SUBMIT,
    BenchGrid,
    an_offer,
    bearer,
    fresh,
    job_requests,
    matches_in,
    results_in,
    start,
    submission,
)
from harness.lhcb import SIMULATION
from harness.load import Answer, Request, freeze_objects
from harness.processes import cpu_s, resident_mb
from harness.setting import SHARING, Setting, bench, scratch, server_on_its_core, the_day
from harness.waiting_pilots import waiting_pilots
from pilotage.job_description import JobDescription

IDLE_PILOTS = 20_000
LEASES = 50_000
SLOTS = 50
SHORT_JOB = JobDescription("/bin/true")
"""The only job that is short enough for the slots of the idle pilots."""

STARTS = 200
WARM_UP = 5
"""Starts that are not counted: the first one waits until the server has received all calls of the pilots."""

REFUSED_PAUSE_S = 0.01
LOOK_S = 5.0
START_BUDGET_MS, MEMORY_BUDGET_MB = 50.0, 2_000.0


def figures(setting: Setting) -> Iterator[Figure]:
    """Fill a server with leases and idle pilots, then submit one job after the other."""
    day, speed = the_day(), machine_speed()
    with (
        scratch() as folder,
        server_on_its_core(folder / "server", **SHARING) as server,
        closing(BenchGrid(server, day)) as grid,
    ):
        grid.put_tree(day.tree())
        grid.submit_day(2 * setting.size(LEASES))
        progress(f"{_match_leases(grid, setting.size(LEASES)):,} leases")
        idle = grid.pilots(setting.size(IDLE_PILOTS))
        granted: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        with waiting_pilots(server.address, idle, granted.put):
            freeze_objects()
            for _ in range(WARM_UP):
                _start_ms(grid, granted)
            yield measured("crowd: CPU share of idle pilots", 100 * _cpu_share(grid, setting.seconds(LOOK_S)), "%")
            starts = sorted(_start_ms(grid, granted) for _ in range(setting.size(STARTS, 20)))
            p99_ms = round(starts[int(len(starts) * 0.99) - 1], 1)
            median_ms = statistics.median(starts)
            yield at_most("crowd: from submission to start", median_ms, "ms", START_BUDGET_MS / speed, p99_ms=p99_ms)
            memory_mb = resident_mb(grid.server_pid)
            yield at_most("crowd: memory", memory_mb, "MB", MEMORY_BUDGET_MB, pilots=len(idle))


def _cpu_share(grid: BenchGrid, seconds: float) -> float:
    """Return the CPU share of the server while all pilots wait."""
    before_s = cpu_s(grid.server_pid)
    time.sleep(seconds)
    return (cpu_s(grid.server_pid) - before_s) / seconds


def _match_leases(grid: BenchGrid, leases: int) -> int:
    """Match jobs to all slots of pilots; returns the number of leases."""
    calls = -(-leases // SLOTS)
    run = grid.run(REQUEST_JOBS, job_requests(grid.pilots(max(calls, len(grid.day.sites))), calls, an_offer(SLOTS)), 8)
    return sum(len(matches_in(answer)) for answer in run.answers)


def _start_ms(grid: BenchGrid, granted: queue.SimpleQueue[Answer]) -> float:
    """Submit a job; returns the milliseconds until its start is reported."""
    user = bearer(grid.user_token("lbprods", SIMULATION))
    request = Request(submission([SHORT_JOB], SIMULATION).SerializeToString(), user)
    began_s = time.perf_counter()
    _call(grid, SUBMIT, request)
    answer = granted.get(timeout=30)
    (match,) = matches_in(answer)
    report = _call(grid, REPORT_STATE, Request(fresh(start([match])), answer.request.metadata))
    took_ms = 1000 * (time.perf_counter() - began_s)
    assert all(result.accepted for result in results_in(report)), "the start was refused"
    return took_ms


def _call(grid: BenchGrid, path: str, request: Request) -> Answer:
    """Return the answer to a call, repeated while the server is overloaded."""
    while not (run := grid.run(path, [request], 1)).answers:
        time.sleep(REFUSED_PAUSE_S)
    return run.answers[0]


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
