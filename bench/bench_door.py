"""How long other callers wait while one user submits a million jobs in one call.

Another user submits jobs one by one, and a pilot sends heartbeats and requests jobs. An array of a million jobs is
submitted meanwhile, then as many different descriptions as one call may have.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most, measured
from harness.setting import Setting, bench, database_url, scratch, server_on_its_core
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2_grpc
from support.server import request_id
from support.wire_grid import WireGrid, WirePilot, a_job, submission

JOBS = 1_000_000
DESCRIPTIONS = 20_000
WAIT_TIMEOUT_S = 1800.0
MOST_MS = 200.0
CALLS_ALONE = 100


class RepeatedCall(threading.Thread):
    """A call that is repeated until the end of the block; `waits_ms` are its durations."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        super().__init__(name=name)
        self._call = call
        self._stopping = threading.Event()
        self.waits_ms: list[float] = []

    def run(self) -> None:
        """Make calls, with short pauses."""
        while not self._stopping.wait(0.005):
            begin = time.perf_counter()
            self._call()
            self.waits_ms.append(1000 * (time.perf_counter() - begin))

    def __enter__(self) -> RepeatedCall:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()


def _calls(grid: WireGrid, pilot: WirePilot) -> Iterator[RepeatedCall]:
    other = grid.user("bob")
    yield RepeatedCall("submission of one job", lambda: other.SubmitJobs(submission([a_job()], request_id())))
    yield RepeatedCall("heartbeat", pilot.heartbeat)
    yield RepeatedCall("request for a job", partial(pilot.request_jobs, cpus=1))


def _waits(
    setting: Setting,
    grid: WireGrid,
    pilot: WirePilot,
    jobs: job_service_pb2_grpc.JobServiceStub,
    what: str,
    count: int,
    descriptions: list[JobDescription],
) -> Iterator[Figure]:
    request = submission(descriptions)
    with ExitStack() as running:
        calls = [running.enter_context(call) for call in _calls(grid, pilot)]
        while any(len(call.waits_ms) < CALLS_ALONE for call in calls):
            time.sleep(0.01)
        alone_ms = [_p99(call.waits_ms) for call in calls]
        for call in calls:
            call.waits_ms.clear()
        begin = time.perf_counter()
        answer = jobs.SubmitJobs(request, timeout=WAIT_TIMEOUT_S)
        seconds = time.perf_counter() - begin
    assert len(answer.job_ids) == count, "a job is missing"
    yield measured(_named(setting, what), seconds, "s", jobs=count)
    for call, p99_ms in zip(calls, alone_ms, strict=True):
        more = {"p99_ms": _p99(call.waits_ms), "p99_alone_ms": p99_ms, "calls": len(call.waits_ms)}
        name = _named(setting, f"{call.name} during {what}")
        yield at_most(name, max(call.waits_ms), "ms", MOST_MS / machine_speed(), **more)


def _p99(waits_ms: list[float]) -> float:
    return round(sorted(waits_ms)[max(0, math.ceil(0.99 * len(waits_ms)) - 1)], 1)


def _named(setting: Setting, what: str) -> str:
    return f"door-{setting.database}: {what}"


def figures(setting: Setting) -> Iterator[Figure]:
    """Start a server and measure."""
    machine_speed()  # measured before there is a load
    with (
        scratch() as folder,
        database_url(setting.database) as url,
        server_on_its_core(folder / "server", url) as server,
        closing(WireGrid(server)) as grid,
    ):
        grid.put_tree()
        pilot = grid.start_pilot()
        token = server.token(vo=grid.vo)
        with server.channel(token, timeout_s=WAIT_TIMEOUT_S) as channel:
            jobs = job_service_pb2_grpc.JobServiceStub(channel)
            count = setting.size(JOBS, 20_000)
            array = JobDescription("/bin/true", count=count)
            yield from _waits(setting, grid, pilot, jobs, "an array", count, [array])
            count = setting.size(DESCRIPTIONS, 1_000)
            different = [JobDescription("/bin/true", arguments=f"--seed {n}", name=f"job-{n}") for n in range(count)]
            yield from _waits(setting, grid, pilot, jobs, "different jobs", count, different)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
