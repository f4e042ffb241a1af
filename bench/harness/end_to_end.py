"""A server and one pilot with two slots, started by their commands, that run many /bin/true."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.processes import children, cpu_s, ended_children_cpu_s
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from support.payload_paths import payload_paths
from support.process_grid import ProcessGrid, a_process_grid
from support.server import request_id

SLOTS = 2
WAIT_TIMEOUT_S = 600.0


class StackRun(NamedTuple):
    """What a run of jobs has shown: jobs a second, and which processes used CPU time."""

    per_s: float
    profile: str


class PilotStack:
    """A running server and pilot that run jobs from submission to recorded result."""

    def __init__(self, grid: ProcessGrid, watchdog: int) -> None:
        self._grid = grid
        self._watchdog = watchdog

    def run(self, jobs: int) -> StackRun:
        """Run `jobs` jobs, each with captured output."""
        description = jobs_pb2.JobDescription(executable="/bin/true", stdout="out", count=jobs)
        request = job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
        with self._grid.server.channel(self._grid.server.token(), timeout_s=WAIT_TIMEOUT_S) as channel:
            stub = JobServiceStub(channel)
            before_s, began_s = self._cpu_s(), time.perf_counter()
            job_ids = stub.SubmitJobs(request).job_ids
            wait = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=WAIT_TIMEOUT_S)
            while not (ended := stub.WaitForJobs(wait)).all_final:  # a server answers before the timeout of a long wait
                pass
            took_s = time.perf_counter() - began_s
        failed = [f"{job.id}: {job.reason}" for job in ended.jobs if job.state != jobs_pb2.JOB_STATE_DONE]
        assert not failed, f"{len(failed)} jobs have failed, such as {failed[:3]}"
        spent = ", ".join(f"{name} {1000 * (s - before_s[name]) / jobs:.2f} ms" for name, s in self._cpu_s().items())
        return StackRun(jobs / took_s, f"CPU of a job: {spent}")

    def _cpu_s(self) -> dict[str, float]:
        """Return the CPU time of all processes so far, by name in seconds."""
        assert self._grid.server.process is not None
        pilots = children(self._watchdog)  # one, but for the first moments
        return {
            "server": cpu_s(self._grid.server.process.pid),
            "pilot": cpu_s(*pilots),
            "its launcher": cpu_s(*(child for pilot in pilots for child in children(pilot))),
            "payload with its init": sum(map(ended_children_cpu_s, pilots)),
        }


@contextmanager
def pilot_stack(folder: Path) -> Iterator[PilotStack]:
    """Run the server and the pilot until the end of the block."""
    with a_process_grid(folder, heartbeat_s=30, log_level="warning") as grid, _a_pilot(grid, folder) as watchdog:
        yield PilotStack(grid, watchdog)


@contextmanager
def _a_pilot(grid: ProcessGrid, folder: Path) -> Iterator[int]:
    """Run a pilot; yields the id of its first process, the watchdog, of which the pilot is the only child."""
    token = folder / "pilot.token"
    token.write_text(grid.pilot_token())
    config = folder / "pilot.json"
    settings: dict[str, object] = {
        "server": [grid.server.address],
        "token_file": str(token),
        "scratch": str(folder / "scratch"),
    }
    settings |= payload_paths(folder)
    config.write_text(json.dumps({**settings, "cpus": SLOTS, "memory_mib": 4000, "log_level": "warning"}))
    command = [sys.executable, "-m", "pilotage_pilot.main", "run", "--config", str(config)]
    with (folder / "pilot.log").open("wb") as log:
        pilot = subprocess.Popen(command, stderr=log)
    try:
        yield pilot.pid
    finally:
        pilot.terminate()
        pilot.wait()
