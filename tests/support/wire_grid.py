"""A small grid behind a running server, used over the wire by users, pilots and operators."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from pilotage.job_description import JobDescription
from pilotage.jobs.wire import description_to_wire
from pilotage.resources.tree import QueueId
from pilotage.rpc.proof import BoundToken
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    jobs_pb2,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    resource_service_pb2,
    resource_service_pb2_grpc,
    values_pb2,
)
from pilotage_server.core.identity import Role
from support.server import RunningServer, Token, request_id

QUEUE = QueueId("SITE", "ce1", "long")
TREE = """
{"sites": {"SITE": {"ces": {"ce1": {"queues": {"long": {"Memory": 4000}, "short": {"Memory": 1000}}}}}}}
"""


def a_job(**requirements: Any) -> JobDescription:
    """Return the description of a job with these requirements."""
    return JobDescription("/bin/true", requirements=requirements or None)


class WirePilot:
    """A pilot that calls the server and runs no payloads."""

    def __init__(self, channel: grpc.Channel, stamp: str, token: BoundToken) -> None:
        self.stamp = stamp
        self.token = token
        self.matcher = matcher_service_pb2_grpc.MatcherServiceStub(channel)
        self.pilots = pilot_service_pb2_grpc.PilotServiceStub(channel)

    def request_jobs(
        self, *, wait_s: float = 0.0, cpus: int = 1, id_: str = ""
    ) -> matcher_service_pb2.RequestJobsResponse:
        """Request jobs for one slot."""
        request = self.request(wait_s=wait_s, cpus=cpus, id_=id_)
        return self.matcher.RequestJobs(request, timeout=wait_s + 20)

    def request(
        self, *, wait_s: float = 0.0, cpus: int = 1, id_: str = "", **offer: Any
    ) -> matcher_service_pb2.RequestJobsRequest:
        """Return a request for jobs for one slot; `offer` are other fields of the slot."""
        free = values_pb2.Amounts(cpus=cpus, memory_mib=4000, disk_mib=10_000)
        slot = matcher_service_pb2.SlotOffer(name="slot1", free=free, **offer)
        return matcher_service_pb2.RequestJobsRequest(request_id=id_ or request_id(), slots=[slot], wait_s=wait_s)

    def report(self, job_id: int, attempt: int = 1, **facts: Any) -> matcher_service_pb2.ReportResult:
        """Report on an attempt: that it runs, or its `outcome`."""
        state = jobs_pb2.JOB_STATE_DONE if "outcome" in facts else jobs_pb2.JOB_STATE_RUNNING
        report = jobs_pb2.JobReport(job_id=job_id, attempt=attempt, **({"state": state} | facts))
        request = matcher_service_pb2.ReportStateRequest(request_id=request_id(), reports=[report])
        return self.matcher.ReportState(request).results[0]

    def finish(
        self, job_id: int, attempt: int = 1, outputs: Mapping[str, bytes] | None = None, exit_code: int = 0
    ) -> None:
        """Report that an attempt has exited and left these files."""
        files = [
            jobs_pb2.OutputFile(
                name=name, checksum=hashlib.sha256(content).hexdigest(), size=len(content), content=content
            )
            for name, content in (outputs or {}).items()
        ]
        result = self.report(job_id, attempt, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=exit_code, output_files=files)
        assert result.accepted, result.refusal

    def heartbeat(self, **facts: Any) -> matcher_service_pb2.ReportStateResponse:
        """Send a heartbeat."""
        return self.matcher.ReportState(
            matcher_service_pb2.ReportStateRequest(**({"request_id": request_id()} | facts))
        )


class WireGrid:
    """A server with its users and pilots; each grid has a VO of its own."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.vo = f"vo-{request_id()}"
        self._channels: list[grpc.Channel] = []
        operator = self.channel(server.token(Role.OPERATOR, owner="olga"))
        self.resources = resource_service_pb2_grpc.ResourceServiceStub(operator)
        self.pilots = pilot_service_pb2_grpc.PilotServiceStub(operator)
        self.jobs = self.user()

    def put_tree(self, text: str = TREE) -> int:
        """Make this tree the active one; returns its version."""
        request = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format="json")
        return self.resources.PutTree(request).version

    def tree_version(self) -> int:
        """Return the version of the active tree."""
        return self.resources.GetTree(resource_service_pb2.GetTreeRequest()).version

    def list_pilots(self) -> list[pilot_service_pb2.Pilot]:
        """Return all pilots."""
        return list(self.pilots.ListPilots(pilot_service_pb2.ListPilotsRequest(ended=True)).pilots)

    def user(self, owner: str = "alice", **who: Any) -> job_service_pb2_grpc.JobServiceStub:
        """Return the job service for a user."""
        token = self.server.token(owner=owner, **({"vo": self.vo} | who))
        return job_service_pb2_grpc.JobServiceStub(self.channel(token))

    def channel(self, token: Token) -> grpc.Channel:
        """Return a channel that `close` closes."""
        channel = self.server.channel(token)
        self._channels.append(channel)
        return channel

    def submit(self, *descriptions: JobDescription, id_: str = "") -> list[int]:
        """Submit jobs as the default user; returns their ids."""
        return list(self.jobs.SubmitJobs(submission(descriptions, id_)).job_ids)

    def start_pilot(self, queue: QueueId = QUEUE, **options: Any) -> WirePilot:
        """Register and enrol a pilot and send its first heartbeat."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=request_id(), queue=queue_to_wire(queue), count=1, vos=[self.vo], **options
        )
        return self.enrol(self.pilots.RegisterPilots(request).pilots[0])

    def enrol(self, credential: pilot_service_pb2.PilotCredential) -> WirePilot:
        """Enrol a registered pilot and send its first heartbeat."""
        token = self.server.enrolled(credential.token)
        pilot = WirePilot(self.channel(token), credential.stamp, token)
        node = matcher_service_pb2.NodeState(name="node1", amounts=values_pb2.Amounts(cpus=1))
        pilot.heartbeat(node=node)
        return pilot

    def state_of(self, job_id: int) -> str:
        """Return the state of a job."""
        job = self.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0]
        return jobs_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")

    def change(self, change: job_service_pb2.JobChange.ValueType, *job_ids: int) -> None:
        """Remove, hold, release or reschedule jobs."""
        request = job_service_pb2.ChangeJobsRequest(
            request_id=request_id(), job_ids=job_ids, change=change, reason="because"
        )
        assert not any(result.refusal for result in self.jobs.ChangeJobs(request).results)

    def close(self) -> None:
        """Close every channel."""
        for channel in self._channels:
            channel.close()


def submission(descriptions: Sequence[JobDescription], id_: str = "") -> job_service_pb2.SubmitJobsRequest:
    """Return a request that submits jobs."""
    messages = [description_to_wire(description) for description in descriptions]
    return job_service_pb2.SubmitJobsRequest(request_id=id_ or request_id(), descriptions=messages)
