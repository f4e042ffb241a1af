"""Times of lists, filters, counts and views of the web page at ten million jobs, most of which have ended.

The queue has the shape of LHCb's on one day. Each request is made several times over gRPC, HTTP or as a page, in turns
with the others; a figure is the slowest of these after the first. Prints JSON lines; exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import grpc

from harness.figures import Figure, at_most, progress
from harness.grid import (
    REPORT_STATE,
    REQUEST_JOBS,
    BenchGrid,
    LoadPilot,
    an_offer,
    completion,
    fresh,
    job_requests,
    matches_in,
    start,
)
from harness.grown_queue import grow
from harness.lhcb import VO
from harness.load import Answer, Request
from harness.setting import SHARING, Setting, bench, scratch, server_on_its_core, the_day
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_server.core.identity import Role
from pilotage_server.core.jobs.workflow_graphs import MAX_STEPS
from pilotage_server.web.routes import PAGE_VIEWS
from pilotage_server.web.sessions import TOKEN_COOKIE
from pilotage_server.web.views.node import NODE
from support.http_client import HttpClient
from support.server import RunningServer

BASE_JOBS = 10_000
TIMES = 1_000
ENDED_OF_TEN, RUNNING = 9, 20
SLOTS = 20
PILOTS = 240
ROUNDS = 6
BUDGET_MS = 300.0
LEASE_S = 86_400
"""Leases of the copied jobs, which no pilot renews, last longer than the bench."""

CONDITIONS: Mapping[str, Mapping[str, str]] = {
    "all jobs": {},
    "an owner": {"owner": "sharmar"},
    "waiting jobs": {"states": "JOB_STATE_WAITING"},
    "running jobs of a site": {"states": "JOB_STATE_RUNNING", "site": "LCG.CERN.cern"},
    "failed jobs": {"states": "JOB_STATE_FAILED"},
    "a name that no job has": {"name": "nothing*"},
    "an expression": {"where": "Cmd =!= undefined && JobPrio > 3"},
    "an expression that no job meets": {"where": "JobPrio > 1000000"},
}
"""By the name of a list: fields of its condition."""

VIEWS_OF_ONE_THING = {
    "/jobs/{job_id:int}": "/jobs/1",
    "/workflows/{workflow:int}": "/workflows/1",
    "/sites/{site}": "/sites/LCG.CERN.cern",
}

WORKFLOWS = 60
"""Workflows; the first of them, with job 1, has the largest graph that is kept, the others have one job each."""


def figures(setting: Setting) -> Iterator[Figure]:
    """Make the queue and measure all."""
    with scratch() as folder:
        data = folder / "server"
        _make_jobs(setting, data)
        times = setting.size(TIMES, 4)
        progress(f"the queue grows to {times} times its length")
        grow(data, times)
        with server_on_its_core(data, http_listen="127.0.0.1:0", lease_s=LEASE_S) as server:
            yield from _measured(server)


def _make_jobs(setting: Setting, data: Path) -> None:
    """Submit jobs to a new server; pilots end most of them and run some."""
    day = the_day()
    with (
        server_on_its_core(data, lease_s=LEASE_S, **SHARING) as server,
        closing(BenchGrid(server, day)) as grid,
    ):
        grid.put_tree(day.tree())
        grid.submit_workflow(*_largest_graph())
        for _ in range(1, WORKFLOWS):
            grid.submit_workflow([JobDescription("/bin/true")])
        jobs = grid.submit_day(setting.size(BASE_JOBS, 2_000))
        pilots = grid.pilots(PILOTS)
        _end_jobs(grid, pilots, jobs * ENDED_OF_TEN // 10)
        run = grid.run(REQUEST_JOBS, job_requests(pilots, RUNNING, an_offer()), 1)
        _report(grid, run.answers, start)
        server.stop()


def _largest_graph() -> tuple[list[JobDescription], list[Dependency]]:
    """Return jobs of which each waits for two of the fifty before it."""
    chance = random.Random(3)
    edges = [
        Dependency(job, DependencyKind.AFTER_OK, descriptions=tuple(chance.sample(range(max(0, job - 50), job), 2)))
        for job in range(2, MAX_STEPS)
    ]
    return [JobDescription("/bin/true", name=f"step-{job}") for job in range(MAX_STEPS)], edges


def _end_jobs(grid: BenchGrid, pilots: list[LoadPilot], wanted: int) -> None:
    """Run jobs to their end until this number has ended, or no slot gets a job."""
    ended = 0
    while ended < wanted:
        run = grid.run(REQUEST_JOBS, job_requests(pilots, len(pilots), an_offer(SLOTS)), 8)
        answers = [answer for answer in run.answers if matches_in(answer)]
        if not answers:
            break
        for report in (start, completion):
            _report(grid, answers, report)
        ended += sum(len(matches_in(answer)) for answer in answers)


def _report(grid: BenchGrid, answers: list[Answer], report: Callable[..., bytes]) -> None:
    reports = [Request(fresh(report(matches_in(answer))), answer.request.metadata) for answer in answers]
    grid.run(REPORT_STATE, reports, 8)


def _measured(server: RunningServer) -> Iterator[Figure]:
    """Measure each request of an operator, who sees all jobs."""
    token = server.token(Role.OPERATOR, owner="olga", vo=VO)
    with server.channel(token) as channel:
        requests = dict(_requests(server, channel, token))
        latencies_ms: dict[str, list[float]] = {name: [] for name in requests}
        for _ in range(ROUNDS):
            for name, request in requests.items():
                began_s = time.perf_counter()
                request()
                latencies_ms[name].append(1000 * (time.perf_counter() - began_s))
    for name, (first_ms, *others_ms) in latencies_ms.items():
        more = {"first_ms": round(first_ms, 1), "median_ms": round(statistics.median(others_ms), 1)}
        yield at_most(f"lists: {name}", max(others_ms), "ms", BUDGET_MS, **more)


def _requests(server: RunningServer, channel: grpc.Channel, token: str) -> Iterator[tuple[str, Callable[[], object]]]:
    stub = job_service_pb2_grpc.JobServiceStub(channel)
    scripts = HttpClient(server.http_address, token)
    for name, fields in CONDITIONS.items():
        yield f"{name}, gRPC", _list(stub, fields)
        query = urlencode({f"condition.{key}": text for key, text in {"owner": "*", **fields}.items()})
        yield f"{name}, HTTP", _get(scripts, f"/v1/jobs?page_size=100&newest_first=true&{query}")
        yield f"{name}, number", _search(stub, fields)
    browser = HttpClient(server.http_address)
    cookie = f"{TOKEN_COOKIE}={token}"
    for view in PAGE_VIEWS:
        if view is NODE:
            continue  # no pilot of the bench shows a node
        path = VIEWS_OF_ONE_THING.get(view.path, view.path)
        yield f"page {path}", _get(browser, path, cookie=cookie)


def _condition(fields: Mapping[str, str]) -> job_service_pb2.JobCondition:
    condition = job_service_pb2.JobCondition(owner="*")
    for key, text in fields.items():
        if key == "states":
            condition.states.append(jobs_pb2.JobState.Value(text))
        else:
            setattr(condition, key, text)
    return condition


def _list(stub: job_service_pb2_grpc.JobServiceStub, fields: Mapping[str, str]) -> Callable[[], object]:
    request = job_service_pb2.ListJobsRequest(page_size=100, newest_first=True, condition=_condition(fields))
    return lambda: stub.ListJobs(request)


def _search(stub: job_service_pb2_grpc.JobServiceStub, fields: Mapping[str, str]) -> Callable[[], object]:
    request = job_service_pb2.SearchJobsRequest(condition=_condition(fields))
    return lambda: stub.SearchJobs(request)


def _get(client: HttpClient, path: str, **headers: str) -> Callable[[], object]:
    def get() -> None:
        answer = client.call("GET", path, **headers)
        assert answer.status == 200, f"{path}: {answer.status} {answer.content[:300]!r}"

    return get


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
