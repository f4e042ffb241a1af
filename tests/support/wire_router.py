"""A job router that speaks to a running server and makes no copies."""

from __future__ import annotations

import hashlib
from typing import Any

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
from pilotage_server.core.identity import Role
from support.server import request_id
from support.wire_grid import QUEUE, WireGrid


class WireRouter:
    """A job router that has its turn for ten minutes."""

    def __init__(self, grid: WireGrid, name: str = "") -> None:
        channel = grid.channel(grid.server.token(Role.AGENT, owner="agent:router"))
        self.routes = RouteServiceStub(channel)
        self.jobs = JobServiceStub(channel)
        self.turn = Turn(agent=name or f"router {request_id()}", holder="me")
        self.agents = AgentServiceStub(channel)
        self.agents.TakeTurn(TakeTurnRequest(turn=self.turn, for_s=600))

    def stop(self) -> None:
        """Give the turn back."""
        self.agents.GiveBackTurn(GiveBackTurnRequest(turn=self.turn))

    def route(self, *job_ids: int, id_: str = "", queue: QueueId = QUEUE) -> RouteJobsResponse:
        """Take jobs for copies."""
        copies = [
            NewCopy(job_id=job_id, route="north", target=f"queue {queue}", queue=queue_to_wire(queue))
            for job_id in job_ids
        ]
        return self.routes.RouteJobs(RouteJobsRequest(request_id=id_ or request_id(), turn=self.turn, copies=copies))

    def tell(self, *copies: CopyReport) -> ReportCopiesResponse:
        """Say what becomes of copies."""
        return self.routes.ReportCopies(ReportCopiesRequest(request_id=request_id(), turn=self.turn, copies=copies))

    def put(self, *outlines: RouteOutline, **more: Any) -> None:
        """Tell of routes."""
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
    """Return the report that the payload of a copy has ended well."""
    report = jobs_pb2.JobReport(job_id=job_id, attempt=attempt, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0, **facts)
    return CopyReport(job_id=job_id, attempt=attempt, report=report)
