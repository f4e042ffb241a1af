"""Job routers without targets, which take jobs and report on them: on a grid in memory, and over the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import jobs_pb2
from pilotage.v1.agent_service_pb2 import GiveBackTurnRequest, TakeTurnRequest
from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
from pilotage.v1.job_service_pb2 import DownloadFileRequest, UploadFileRequest
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.route_service_pb2 import (
    CopyReport,
    NewCopy,
    PutRoutesRequest,
    ReportCopiesRequest,
    ReportCopiesResponse,
    RouteJobsRequest,
    RouteJobsResponse,
    RouteOutline,
)
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.v1.values_pb2 import Turn
from pilotage.values.attempts import Outcome, ReportResult
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob, UnwantedRoutedJob
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import UNBOUND, AgentBounds, Identity, Role
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.routing import RouteAnswer, RouterReport
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.operations.routing.route_jobs import route_jobs
from pilotage_server.operations.routing.routed_jobs import (
    OpenRoutedJob,
    ReleasedRoutedJobs,
    give_up_routed_jobs,
    list_routed_jobs,
    report_routed_jobs,
    unwanted_routed_jobs,
)
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid
from support.jobs import an_operator
from support.server import request_id
from support.virtual_clock import VirtualClock
from support.wire_grid import QUEUE, WireGrid

AN_AGENT = Identity("agent:router", "", (), frozenset({Role.ROUTER}))
TEN_YEARS = timedelta(days=3650)
SHORT = "CERN/ce01/short"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    """Return a grid of two queues."""
    return Grid(database, clock, LONG, SHORT)


@pytest.fixture
def router(grid: Grid) -> Router:
    """Return a router of the grid that is the leader."""
    return Router(grid).begin()


def a_copy(job_id: int, target: str = LONG, route: str = "north") -> NewRoutedJob:
    """Return a new routed job; a target without slashes is another server."""
    queue = QueueId.parse(target) if "/" in target else None
    return NewRoutedJob(job_id, route, f"queue {target}" if queue else f"server {target}", queue)


class ReportAnswer(NamedTuple):
    """The results of reports, and the unwanted routed jobs."""

    results: tuple[ReportResult, ...]
    unwanted: tuple[UnwantedRoutedJob, ...]


@dataclass
class Router:
    """A job router that keeps the attempts that it was given, by job, and reports what a test says."""

    grid: Grid
    name: str = "job router of sky"
    holder: str = "one"
    attempts: dict[int, int] = field(default_factory=dict)

    @property
    def turn(self) -> Leadership:
        """The leadership that it acts under."""
        return Leadership(self.name, self.holder)

    def begin(self) -> Router:
        """Become the leader for ten years, and return itself."""
        self.grid.database.write(lambda transaction: take_leadership(transaction, self.turn, TEN_YEARS, "here"))
        return self

    def route(self, *copies: NewRoutedJob) -> list[RouteAnswer]:
        """Request jobs and return the answers."""
        answers = self.grid.write(lambda transaction, state: route_jobs(transaction, state, self.turn, copies))
        self.attempts.update((each.job_id, each.attempt) for each in answers if not each.refusal)
        return list(answers)

    def take(self, *job_ids: int, target: str = LONG, route: str = "north") -> list[int]:
        """Request jobs and return the ids of those that were given."""
        answers = self.route(*(a_copy(job_id, target, route) for job_id in job_ids))
        return [each.job_id for each in answers if not each.refusal]

    def refusal(self, copy: NewRoutedJob) -> str:
        """Request one job and return the reason of its refusal."""
        (answer,) = self.route(copy)
        assert answer.attempt == 0 or not answer.refusal
        return answer.refusal

    def send_reports(self, *reports: RouterReport) -> ReportAnswer:
        """Report on routed jobs."""
        results = self.grid.write(
            lambda transaction, state: report_routed_jobs(transaction, state, AN_AGENT, self.turn, reports)
        )
        return ReportAnswer(
            results, self.grid.read(lambda transaction, _: unwanted_routed_jobs(transaction, self.name)).copies
        )

    def report(self, job_id: int, outcome: Outcome | None = None, *, node: str = "", **fields: Any) -> ReportAnswer:
        """Report on one routed job."""
        return self.send_reports(self.a_report(job_id, outcome, node=node, **fields))

    def a_report(
        self, job_id: int, outcome: Outcome | None = None, *, node: str = "", reference: str = "", **fields: Any
    ) -> RouterReport:
        """Return a report on a routed job."""
        attempt = self.attempts[job_id]
        return RouterReport(job_id, attempt, reference, node, JobReport(job_id, attempt, outcome=outcome, **fields))

    def start(self, *job_ids: int, **fields: Any) -> ReportAnswer:
        """Report that routed jobs run."""
        return self.send_reports(*(self.a_report(job_id, state=JobState.RUNNING, **fields) for job_id in job_ids))

    def finish(self, *job_ids: int, exit_code: int = 0, **fields: Any) -> ReportAnswer:
        """Report that the payloads of routed jobs have exited."""
        return self.send_reports(
            *(self.a_report(job_id, Outcome.EXITED, exit_code=exit_code, **fields) for job_id in job_ids)
        )

    def unwanted(self) -> list[tuple[int, int]]:
        """Return job and attempt of the unwanted routed jobs."""
        return [(each.job_id, each.attempt) for each in self.send_reports().unwanted]

    def copies(self) -> list[OpenRoutedJob]:
        """Return the open routed jobs of the router."""
        return list(self.grid.read(lambda transaction, _: list_routed_jobs(transaction, self.name)).copies)

    def stop(self) -> None:
        """Release the leadership."""
        self.grid.database.write(lambda transaction: release_leadership(transaction, self.turn))

    def give_up(self) -> ReleasedRoutedJobs:
        """Give up the routed jobs of the router, as an operator."""
        return self.grid.write(
            lambda transaction, state: give_up_routed_jobs(transaction, state, an_operator(), self.name)
        )


def open_jobs(copies: Iterable[OpenRoutedJob]) -> list[int]:
    """Return the jobs of open routed jobs."""
    return [each.copy.job_id for each in copies]


class WireRouter:
    """A job router behind a channel that is the leader for ten minutes."""

    def __init__(self, grid: WireGrid, name: str = "", bounds: AgentBounds = UNBOUND) -> None:
        channel = grid.channel(grid.server.token(Role.ROUTER, owner="agent:router", bounds=bounds))
        self.routes = RouteServiceStub(channel)
        self.jobs = JobServiceStub(channel)
        self.turn = Turn(agent=name or f"job router of {request_id()}", holder="me")
        self.agents = AgentServiceStub(channel)
        self.agents.TakeTurn(TakeTurnRequest(turn=self.turn, for_s=600))

    def stop(self) -> None:
        """Release the leadership."""
        self.agents.GiveBackTurn(GiveBackTurnRequest(turn=self.turn))

    def route(self, *job_ids: int, id_: str = "", queue: QueueId = QUEUE) -> RouteJobsResponse:
        """Request jobs."""
        copies = [
            NewCopy(job_id=job_id, route="north", target=f"queue {queue}", queue=queue_to_wire(queue))
            for job_id in job_ids
        ]
        return self.routes.RouteJobs(RouteJobsRequest(request_id=id_ or request_id(), turn=self.turn, copies=copies))

    def send_reports(self, *copies: CopyReport) -> ReportCopiesResponse:
        """Report on routed jobs."""
        return self.routes.ReportCopies(ReportCopiesRequest(request_id=request_id(), turn=self.turn, copies=copies))

    def put(self, *outlines: RouteOutline, **more: Any) -> None:
        """Publish the routes."""
        self.routes.PutRoutes(PutRoutesRequest(turn=self.turn, routes=outlines, **more))

    def upload(self, content: bytes) -> str:
        """Upload a file and return its checksum."""
        checksum = hashlib.sha256(content).hexdigest()
        pieces = [UploadFileRequest(checksum=checksum, size=len(content), content=content)]
        return self.jobs.UploadFile(iter(pieces)).checksum

    def download(self, job_id: int, checksum: str) -> bytes:
        """Fetch a file of a job."""
        pieces = self.jobs.DownloadFile(DownloadFileRequest(job_id=job_id, checksum=checksum, turn=self.turn))
        return b"".join(piece.content for piece in pieces)


def an_end(job_id: int, attempt: int = 1, **facts: Any) -> CopyReport:
    """Return the report that the payload of a routed job has exited with 0."""
    report = jobs_pb2.JobReport(job_id=job_id, attempt=attempt, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0, **facts)
    return CopyReport(job_id=job_id, attempt=attempt, report=report)
