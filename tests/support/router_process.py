"""The job router's command as a process, its configuration, and a user of the server that it routes for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilotage.v1 import job_service_pb2, jobs_pb2, resource_service_pb2, route_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.v1.values_pb2 import Value
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id
from support.turn_lengths import LONG
from support.until import until as patiently

PATIENCE_S = 60.0
TREE = '[sites.Lyon.ces.ce1]\nCEType = "local"\nqueues = { long = { CPUs = 4, Memory = 8000 } }\n'
TABLE = """
[ name = "Lyon"; GridResource = "batch"; Requirements = TARGET.WantJobRouter; MaxJobs = 4;
  set_Environment = "SENT=here"; JobFailureTest = ExitCode =!= 0 ]
[ name = "Nowhere"; GridResource = "gt2 nowhere"; Requirements = TARGET.WantJobRouter; ]
"""
CONFIG = f"""
server = "{{server}}"
token_file = "agent.token"
{LONG}
[job_router]
folder = "router"
table = "routes.ads"
interval_s = 0.1
lost_after_s = 2
[job_router.targets.grid_resources]
batch = {{{{ queue = "Lyon/ce1/long" }}}}
[job_router.batch_systems.here]
type = "local"
"""


class User:
    """Somebody with jobs on the server."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def submit(self, script: str, count: int = 1) -> list[int]:
        """Submit jobs that have asked to be routed."""
        described = jobs_pb2.JobDescription(
            executable="/bin/sh",
            arguments=f"-c '{script}'",
            count=count,
            attributes={"WantJobRouter": Value(flag=True)},
        )
        return list(self._jobs("SubmitJobs", request_id=request_id(), descriptions=[described]).job_ids)

    def done(self, job_ids: list[int]) -> list[jobs_pb2.Job]:
        """Return the jobs when they have all ended."""
        answer = self._jobs("WaitForJobs", job_ids=job_ids, timeout_s=PATIENCE_S)
        assert answer.all_final, answer.jobs
        return list(answer.jobs)

    def has_ended(self, job_id: int, within_s: float) -> bool:
        """Return whether a job has ended by then."""
        return bool(self._jobs("WaitForJobs", job_ids=[job_id], timeout_s=within_s).all_final)

    def stdout(self, job_id: int) -> str:
        """Return the standard output of a job."""
        (file,) = [each for each in self._jobs("ListOutputFiles", job_id=job_id).files if each.name == "stdout"]
        with self._server.channel(self._server.token()) as channel:
            asked = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
            return b"".join(piece.content for piece in JobServiceStub(channel).DownloadFile(asked)).decode()

    def remove(self, job_id: int) -> None:
        """Remove a job."""
        change = job_service_pb2.JOB_CHANGE_REMOVE
        self._jobs("ChangeJobs", request_id=request_id(), job_ids=[job_id], change=change)

    def job(self, job_id: int) -> jobs_pb2.Job:
        """Return a job as it is."""
        found: jobs_pb2.Job = self._jobs("GetJobs", job_ids=[job_id]).jobs[0]
        return found

    def _jobs(self, method: str, **fields: Any) -> Any:
        with self._server.channel(self._server.token(), timeout_s=PATIENCE_S + 5) as channel:
            return getattr(JobServiceStub(channel), method)(getattr(job_service_pb2, f"{method}Request")(**fields))


def put_tree(server: RunningServer, text: str) -> None:
    """Bring in a tree."""
    with server.channel(server.token(Role.OPERATOR)) as channel:
        put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format="toml")
        ResourceServiceStub(channel).PutTree(put)


@contextmanager
def a_router(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command as a process of its own."""
    program = Path(sys.executable).with_name("pilotage-agents")
    with config.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([str(program), "job-router", "--config", str(config)], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def copies(server: RunningServer) -> list[route_service_pb2.JobCopy]:
    """Return what the server lists of the router's copies."""
    with server.channel(server.token(Role.AGENT)) as channel:
        request = route_service_pb2.ListCopiesRequest(router="job router of jobrouter")
        return list(RouteServiceStub(channel).ListCopies(request).copies)


def on_a_host(config: Path, host: str) -> Path:
    """Return the same configuration with a folder of its own and the copies in one that is shared."""
    path = config.with_name(f"{host}.toml")
    path.write_text(config.read_text().replace('folder = "router"', f'folder = "{host}"\ncopies_folder = "shared"'))
    return path


def log_of(config: Path) -> str:
    """Return what the router has logged, which is JSON line by line; a line that it is writing is left out."""
    text = config.with_suffix(".log").read_text()
    text = text[: text.rfind("\n") + 1]
    assert all(json.loads(line) for line in text.splitlines())
    return text


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that another process brings about."""
    asyncio.run(patiently(happened, timeout_s=PATIENCE_S))
