"""The time from the return of `submit` to the start of the job's process, on an idle local slot."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most
from harness.setting import Setting, bench, scratch
from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.connection import UP_FILE, ServerOptions

JOBS = 500
WARM_UP = 20
MEDIAN_BUDGET_MS, P99_BUDGET_MS = 20.0, 60.0
CLOCK_READER = JobDescription("/bin/date", arguments="+%s%N", stdout="started")


def figures(setting: Setting) -> Iterator[Figure]:
    """Start the stack and run the jobs."""
    speed = machine_speed()
    with scratch() as data, _running_stack(data), Client.located(ServerOptions(data=data)) as client:
        for _ in range(WARM_UP):
            _latency_ms(client)
        latencies = sorted(_latency_ms(client) for _ in range(setting.size(JOBS, 10)))
    median_ms, p99_ms = statistics.median(latencies), latencies[int(len(latencies) * 0.99) - 1]
    yield at_most("latency", median_ms, "ms", MEDIAN_BUDGET_MS / speed, jobs=len(latencies))
    yield at_most("latency: 99 % of jobs", p99_ms, "ms", P99_BUDGET_MS / speed)


@contextmanager
def _running_stack(data: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "pilotage_client.cli.main", "up", "--data", str(data), "--port", "0"]
    with (data / "up.log").open("wb") as log:
        stack = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(data / UP_FILE)
        yield
    finally:
        stack.send_signal(signal.SIGINT)
        stack.wait(timeout=60)


def _latency_ms(client: Client) -> float:
    job_id = client.submit([CLOCK_READER]).job_ids[0]
    returned_ns = time.time_ns()
    ended = client.wait([job_id], 60)[0]
    if ended.state != "DONE":
        sys.exit(f"job {job_id} is {ended.state}: {ended.reason}")
    started = next(file for file in client.output_files(job_id) if file.name == "started")
    return (int(client.read_output(job_id, started)) - returned_ns) / 1e6


def _wait_for(path: Path) -> None:
    deadline = time.perf_counter() + 60
    while not path.exists():
        if time.perf_counter() > deadline:
            sys.exit(f"the stack did not start within a minute; see {path.parent}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
