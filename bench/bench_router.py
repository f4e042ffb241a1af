"""The rate at which a job router takes jobs, submits routed jobs, and reports their ends.

Server and router have a core each. Routed jobs complete at once, so that only the router and the server are measured.
The queue holds 10,000 jobs with WantJobRouter, and then 100,000; the rate must be the same. Prints JSON lines; exits 1
if a budget is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import noop_router
from harness.empty_call import machine_speed
from harness.figures import Figure, at_least, at_most, progress
from harness.processes import LOAD_CORE, cpu_s, on_core
from harness.setting import Setting, bench, database_url, scratch, server_on_its_core
from pilotage import clock
from pilotage.v1 import job_service_pb2, jobs_pb2, resource_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.values_pb2 import Value
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id

QUEUES = (10_000, 100_000)
MEASURED = 6_000
"""The number of measured jobs; the rate leaves out the first tenth of them."""

BUDGET_PER_S = 300.0
BUDGET_MB = 200.0
COST_RATIO_BUDGET = 1.3
"""The largest ratio of CPU time a job, long queue to short; it depends less on other load than a rate."""

WAIT_TIMEOUT_S = 1800.0
OWNER = "cmsprod"
ARRAYS = 10
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Flow:
    """Jobs a second of a router, its largest memory, and the time to the end of the first job.

    `router_ms` and `server_ms` are CPU time a job, after the feed has been read.
    """

    per_s: float
    peak_mb: float
    first_s: float
    router_ms: float
    server_ms: float


def figures(setting: Setting) -> Iterator[Figure]:
    """Measure with each queue."""
    flows, least_per_s = [], BUDGET_PER_S * machine_speed()
    for full in QUEUES:
        waiting = setting.size(full, 50)
        flow = _measured(setting, waiting, min(setting.size(MEASURED, 40), waiting))
        flows.append(flow)
        more = {name: round(getattr(flow, name), 2) for name in ("first_s", "router_ms", "server_ms")}
        yield at_least(f"router: jobs routed and done, {full:,} wait", flow.per_s, "jobs/s", least_per_s, **more)
        yield at_most(f"router: memory, {full:,} wait", flow.peak_mb, "MB", BUDGET_MB)
    short, long = flows
    dearer = (long.router_ms + long.server_ms) / max(1e-6, short.router_ms + short.server_ms)
    yield at_most("router: cost of a job, 100,000 by 10,000 that wait", dearer, "ratio", COST_RATIO_BUDGET)


def _measured(setting: Setting, waiting: int, measured: int) -> Flow:
    with (
        scratch() as folder,
        database_url(setting.database) as url,
        server_on_its_core(folder / "server", url) as server,
        server.channel(server.token(owner=OWNER), timeout_s=WAIT_TIMEOUT_S) as channel,
    ):
        _put_tree(server)
        jobs = JobServiceStub(channel)
        job_ids = _submit(jobs, waiting)
        progress(f"{len(job_ids):,} jobs wait")
        assert server.process is not None
        began_s = clock.now().timestamp()
        with _a_router(server, folder) as router:
            _wait_for(jobs, job_ids[measured // 10])
            before = [cpu_s(router), cpu_s(server.process.pid)]
            _wait_for(jobs, job_ids[measured - 1])
            used_s = [cpu_s(router) - before[0], cpu_s(server.process.pid) - before[1]]
            peak_mb = _peak_mb(router)
        ends_s = sorted(_ends_s(jobs, job_ids[:measured]))
    warm = [end_s for end_s in ends_s if end_s > ends_s[len(ends_s) // 10]]
    per_s = len(warm) / (ends_s[-1] - ends_s[len(ends_s) // 10]) if warm else len(ends_s) / (ends_s[-1] - began_s)
    return Flow(per_s, peak_mb, ends_s[0] - began_s, *(1000 * each / max(1, len(warm)) for each in used_s))


def _wait_for(jobs: JobServiceStub, job_id: int) -> None:
    jobs.WaitForJobs(job_service_pb2.WaitForJobsRequest(job_ids=[job_id], timeout_s=WAIT_TIMEOUT_S))


def _put_tree(server: RunningServer) -> None:
    queues = map(noop_router.queue_of, noop_router.ROUTES)
    sites = {each.site: {"ces": {each.ce: {"CEType": "grid", "queues": {each.queue: {}}}}} for each in queues}
    put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=json.dumps({"sites": sites}), format="json")
    with server.channel(server.token(Role.OPERATOR)) as channel:
        ResourceServiceStub(channel).PutTree(put)


def _submit(jobs: JobServiceStub, waiting: int) -> list[int]:
    """Submit arrays of jobs with WantJobRouter; returns their ids."""
    job_ids: list[int] = []
    for number in range(ARRAYS):
        attributes = {"WantJobRouter": Value(flag=True), "Dataset": Value(text=f"Dataset{number}")}
        description = jobs_pb2.JobDescription(
            executable="/cvmfs/cms.cern.ch/run",
            arguments=f"--dataset {number} --seed $(ProcId)",
            attributes=attributes,
            request_memory_mib=2000,
            count=-(-waiting // ARRAYS),
        )
        request = job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
        job_ids += jobs.SubmitJobs(request).job_ids
    return job_ids


@contextmanager
def _a_router(server: RunningServer, folder: Path) -> Iterator[int]:
    """Run the router on its core until the end of the block; yields its process id."""
    table, token = folder / "table.ads", folder / "token"
    token.write_text(server.token(Role.ROUTER, owner="agent:router"))
    table.write_text("\n".join(_route(number, name) for number, name in enumerate(noop_router.ROUTES)))
    command = [sys.executable, noop_router.__file__, server.address, str(token), str(table), str(folder / "router")]
    with on_core(LOAD_CORE):
        router = subprocess.Popen(command)
    try:
        yield router.pid
    finally:
        router.terminate()
        router.wait()


def _route(number: int, name: str) -> str:
    """Return a route for all jobs except those of one dataset."""
    requirements = f'TARGET.WantJobRouter && TARGET.Dataset != "Dataset{number}"'
    return f'[ name = "{name}"; GridResource = "batch"; Requirements = {requirements}; set_remote_queue = "grid" ]'


def _ends_s(jobs: JobServiceStub, job_ids: list[int]) -> Iterator[float]:
    """Yield the end times of DONE jobs, in seconds since 1970."""
    for start in range(0, len(job_ids), _AT_ONCE):
        answer = jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=job_ids[start : start + _AT_ONCE]))
        yield from (job.ended.ToNanoseconds() / 1e9 for job in answer.jobs if job.state == jobs_pb2.JOB_STATE_DONE)


def _peak_mb(pid: int) -> float:
    """Return the peak resident memory of a process, in MB (10^6 bytes)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
