"""Job routers with real servers: the router as a process, its link to a server, and a server as a target."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.v1 import job_service_pb2, jobs_pb2, resource_service_pb2, route_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.resource_service_pb2 import PutTreeRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.v1.values_pb2 import Value
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import JobMoved, Routed, RoutedJobRequest, RouterLink
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.router.targets.remote_server import RemoteServer
from pilotage_agents.router.targets.server import RemoteJobFolders, RemoteServerTarget
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.leadership import LONG_LEADERSHIP
from support.process_grid import ProcessGrid, RealJobs
from support.processes import until as async_until
from support.routed_job_targets import InMemoryFiles, a_copy
from support.router_scene import FakeRouterLink
from support.server import RunningServer, request_id, running_server

WAIT_TIMEOUT_S = 60.0
QUEUE = QueueId("Lyon", "ce1", "long")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAME = "pilotage-7-3"
"""The name of a routed job."""

TREE = '[sites.Lyon.ces.ce1]\nCEType = "local"\nqueues = { long = { CPUs = 4, Memory = 8000 } }\n'
TABLE = """
[ name = "Lyon"; GridResource = "batch"; Requirements = TARGET.WantJobRouter; MaxJobs = 4;
  set_Environment = "SENT=here"; JobFailureTest = ExitCode =!= 0 ]
[ name = "Nowhere"; GridResource = "gt2 nowhere"; Requirements = TARGET.WantJobRouter; ]
"""
CONFIG = f"""
server = "{{server}}"
token_file = "agent.token"
{LONG_LEADERSHIP}
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
    """A user with jobs on the server."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def submit(self, script: str, count: int = 1) -> list[int]:
        """Submit jobs with the attribute WantJobRouter."""
        described = jobs_pb2.JobDescription(
            executable="/bin/sh",
            arguments=f"-c '{script}'",
            count=count,
            attributes={"WantJobRouter": Value(flag=True)},
        )
        return list(self._jobs("SubmitJobs", request_id=request_id(), descriptions=[described]).job_ids)

    def done(self, job_ids: list[int]) -> list[jobs_pb2.Job]:
        """Wait until all jobs have ended; returns them."""
        answer = self._jobs("WaitForJobs", job_ids=job_ids, timeout_s=WAIT_TIMEOUT_S)
        assert answer.all_final, answer.jobs
        return list(answer.jobs)

    def has_ended(self, job_id: int, within_s: float) -> bool:
        """Wait some seconds; returns whether the job has ended."""
        return bool(self._jobs("WaitForJobs", job_ids=[job_id], timeout_s=within_s).all_final)

    def stdout(self, job_id: int) -> str:
        """Return the standard output of a job."""
        (file,) = [each for each in self._jobs("ListOutputFiles", job_id=job_id).files if each.name == "stdout"]
        with self._server.channel(self._server.token()) as channel:
            request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
            return b"".join(piece.content for piece in JobServiceStub(channel).DownloadFile(request)).decode()

    def remove(self, job_id: int) -> None:
        change = job_service_pb2.JOB_CHANGE_REMOVE
        self._jobs("ChangeJobs", request_id=request_id(), job_ids=[job_id], change=change)

    def job(self, job_id: int) -> jobs_pb2.Job:
        found: jobs_pb2.Job = self._jobs("GetJobs", job_ids=[job_id]).jobs[0]
        return found

    def _jobs(self, method: str, **fields: Any) -> Any:
        with self._server.channel(self._server.token(), timeout_s=WAIT_TIMEOUT_S + 5) as channel:
            return getattr(JobServiceStub(channel), method)(getattr(job_service_pb2, f"{method}Request")(**fields))


def put_tree(server: RunningServer, text: str) -> None:
    """Make this tree the active one."""
    with server.channel(server.token(Role.OPERATOR)) as channel:
        put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format="toml")
        ResourceServiceStub(channel).PutTree(put)


@contextmanager
def router_process(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job router until the end of the block."""
    program = Path(sys.executable).with_name("pilotage-agents")
    with config.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([str(program), "job-router", "--config", str(config)], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def copies(server: RunningServer) -> list[route_service_pb2.JobCopy]:
    """Return the routed jobs that the server lists for the router."""
    with server.channel(server.token(Role.ROUTER)) as channel:
        request = route_service_pb2.ListCopiesRequest(router="job router of jobrouter")
        return list(RouteServiceStub(channel).ListCopies(request).copies)


def config_of_host(config: Path, host: str) -> Path:
    """Return the configuration of another host, with its own folder and a shared folder of routed jobs."""
    path = config.with_name(f"{host}.toml")
    path.write_text(config.read_text().replace('folder = "router"', f'folder = "{host}"\ncopies_folder = "shared"'))
    return path


def log_of(config: Path) -> str:
    """Return the complete lines of the router's log, each of which is JSON."""
    text = config.with_suffix(".log").read_text()
    text = text[: text.rfind("\n") + 1]
    assert all(json.loads(line) for line in text.splitlines())
    return text


def until(happened: Callable[[], bool]) -> None:
    """Wait until `happened` returns True."""
    asyncio.run(async_until(happened, timeout_s=WAIT_TIMEOUT_S))


@dataclass
class LinkUnderTest:
    """A router link and functions that act on the jobs of its server."""

    link: RouterLink
    submit: Callable[..., list[int]]
    change: Callable[[str, int], None]
    state: Callable[[int], str]
    output: Callable[[int], dict[str, bytes]]
    ad: Callable[[int], Mapping[str, AdValue]]

    async def route(self, *job_ids: int, route: str = "A") -> list[int]:
        """Route jobs, none of which is refused; returns the attempts."""
        answers = await self.link.route(request_id(), [new_routed_job(job_id, route) for job_id in job_ids])
        return [answer.attempt for answer in answers if isinstance(answer, Routed)]

    async def report(self, *reports: RoutedJobReport) -> dict[tuple[int, int], str]:
        """Report; returns the refusals."""
        return dict((await self.link.report(request_id(), reports)).refused)

    async def waiting(self) -> list[int]:
        """Read the whole feed; returns the waiting jobs."""
        waiting: dict[int, None] = {}
        for event in await self._events():
            if event.state == "WAITING":
                waiting[event.job_id] = None
            else:
                waiting.pop(event.job_id, None)
        return list(waiting)

    async def causes(self, job_id: int) -> list[str]:
        """Read the whole feed; returns the causes of the events of a job."""
        return [event.cause for event in await self._events() if event.job_id == job_id]

    async def _events(self) -> list[JobMoved]:
        events: list[JobMoved] = []
        position = 0
        while (page := await self.link.next_events(position)).position != position:
            position = page.position
            events += page.events
        return events


def new_routed_job(job_id: int, route: str = "A", queue: QueueId | None = QUEUE) -> NewRoutedJob:
    """Return a new routed job."""
    return NewRoutedJob(job_id, route, f"queue {queue}" if queue else "server elsewhere:4711", queue)


def ended(job_id: int, outcome: str, state: RoutedJobState = RoutedJobState.GONE, **fields: Any) -> RoutedJobReport:
    """Return the report that a routed job has ended."""
    reason, files = fields.pop("reason", ""), fields.pop("files", ())
    status = RoutedJobStatus(state, **fields)
    return RoutedJobReport(job_id, 1, state="DONE", outcome=RoutedJobOutcome(outcome, status, reason, files))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a running server with a queue."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        with running.channel(running.token(Role.OPERATOR)) as channel:
            tree = PutTreeRequest(request_id=request_id(), text=TREE, format="toml")
            ResourceServiceStub(channel).PutTree(tree)
        yield running


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.process), "fake"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[LinkUnderTest]:
    """Return a link to a real server, then one to a server in memory."""
    if request.param == "fake":
        fake = FakeRouterLink()
        yield LinkUnderTest(
            fake,
            fake.submit,
            lambda change, job_id: getattr(fake, change)(job_id),
            lambda job_id: fake.jobs[job_id].state,
            lambda job_id: fake.jobs[job_id].output,
            lambda job_id: fake.jobs[job_id].shown,
        )
        return
    running: RunningServer = request.getfixturevalue("server")
    jobs = RealJobs(running)
    async with running.async_channel(running.token(Role.ROUTER, owner="agent:router")) as channel:
        leadership = Leadership(f"job router of {request_id()}", "this one")
        assert (await AgentServerLink(channel).take_leadership(leadership, 60, "here")).granted
        link = RouterServerLink(channel, leadership, most_events=3)
        yield LinkUnderTest(link, jobs.submit, jobs.change, jobs.state, jobs.output, jobs.ad)


@dataclass
class RemoteTarget:
    """Another server, without pilots, as a target; `origin` differs from test to test."""

    grid: ProcessGrid
    line: RemoteServer
    folder: Path
    origin: str
    files: InMemoryFiles

    @property
    def target(self) -> RemoteServerTarget:
        """The target as a router opens it after a restart."""
        return self.at(self.folder)

    def at(self, folder: Path, *, token: str = "token", origin: str = "") -> RemoteServerTarget:
        """Return the target of a router that keeps its routed jobs in this folder."""
        folders = RemoteJobFolders(folder, origin or self.origin)
        return RemoteServerTarget(self.line, folders, self.folder.parent / token if token else None)

    def of(self, name: str = NAME) -> Path:
        """Return the folder of a routed job."""
        return self.folder / f"{name}-{self.origin}"

    def copy_of(self, owner: str, name: str = NAME) -> RoutedJobRequest:
        """Return a routed job with its owner's token for the server among the input files."""
        secret = self.files.add("mine.token", self.grid.server.token(owner=owner))
        return a_copy(name, "/bin/true", input_files=(secret,), attributes={"ScitokensFile": "mine.token"})

    def job(self, reference: str) -> jobs_pb2.Job:
        (job,) = self._as_operator("GetJobs", job_ids=[_id(reference)]).jobs
        found: jobs_pb2.Job = job
        return found

    def description(self, reference: str) -> jobs_pb2.JobDescription:
        found: jobs_pb2.JobDescription = self._as_operator("GetJobDescription", job_id=_id(reference)).description
        return found

    def content(self, reference: str, checksum: str) -> str:
        """Return the content of a file of a job."""
        request = job_service_pb2.DownloadFileRequest(job_id=_id(reference), checksum=checksum)
        with self.grid.server.channel(self.grid.server.token(Role.OPERATOR)) as channel:
            return b"".join(piece.content for piece in JobServiceStub(channel).DownloadFile(request)).decode()

    def change(self, reference: str, change: job_service_pb2.JobChange.ValueType) -> None:
        fields = {"request_id": request_id(), "change": change, "reason": "its owner's wish"}
        self._as_operator("ChangeJobs", job_ids=[_id(reference)], **fields)

    def _as_operator(self, method: str, **fields: Any) -> Any:
        request = getattr(job_service_pb2, f"{method}Request")(**fields)
        with self.grid.server.channel(self.grid.server.token(Role.OPERATOR)) as channel:
            return getattr(JobServiceStub(channel), method)(request)


def _id(reference: str) -> int:
    return int(reference.rsplit(" ")[-1])


@asynccontextmanager
async def a_remote_target(grid: ProcessGrid, folder: Path) -> AsyncIterator[RemoteTarget]:
    """Yield the server of a grid as a target; the router submits as the user "router"."""
    (folder / "token").write_text(grid.server.token(owner="router") + "\n")
    line = RemoteServer([grid.server.address], None)
    yield RemoteTarget(grid, line, folder / "copies", uuid4().hex[:8], InMemoryFiles())
    await line.close()
