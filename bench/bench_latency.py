"""From `submit` returning to the job's process running, on an idle local slot, one job after the other."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.location import UP_FILE, Wishes

JOBS = int(os.environ.get("PILOTAGE_BENCH_JOBS", "500"))
WARM_UP = 20
MEDIAN_BUDGET_MS, P99_BUDGET_MS = 20.0, 60.0
CLOCK_READER = JobDescription("/bin/date", arguments="+%s%N", stdout="started")


def main() -> None:
    """Start the stack, run the jobs, print one JSON line; exits 1 past the budget."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as folder:
        data = Path(folder)
        log = (data / "up.log").open("wb")
        command = [sys.executable, "-m", "pilotage_client.main", "up", "--data", str(data), "--port", "0"]
        stack = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            latencies = sorted(_measure(data))
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(timeout=60)
            log.close()
    _report(latencies)


def _measure(data: Path) -> list[float]:
    _wait_for(data / UP_FILE)
    with Client.located(Wishes(data=data)) as client:
        for _ in range(WARM_UP):
            _latency_ms(client)
        return [_latency_ms(client) for _ in range(JOBS)]


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


def _report(latencies: list[float]) -> None:
    median_ms = round(statistics.median(latencies), 2)
    p99_ms = round(latencies[int(len(latencies) * 0.99) - 1], 2)
    ok = median_ms < MEDIAN_BUDGET_MS and p99_ms < P99_BUDGET_MS
    line = {
        "name": "latency",
        "figure": median_ms,
        "unit": "ms",
        "budget": MEDIAN_BUDGET_MS,
        "ok": ok,
        "median_ms": median_ms,
        "p99_ms": p99_ms,
        "p99_budget_ms": P99_BUDGET_MS,
        "jobs": len(latencies),
    }
    print(json.dumps(line))
    if not ok:
        sys.exit(1)


if __name__ == "__main__":
    main()
