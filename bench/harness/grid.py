"""A server under load: its tree, its jobs, and pilots whose requests are prepared as bytes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from harness.lhcb import VO, LhcbDay
from harness.load import (
    Answer,
    Follow,
    Line,
    Metadata,
    Request,
    Run,
    closed_loop,
    run_conversations,
    steady_load,
)
from harness.processes import cpu_s, threads_profile
from pilotage.job_description import JobDescription
from pilotage.jobs.wire import description_to_wire
from pilotage.resources.tree import QueueId
from pilotage.rpc.proof import PROOF_HEADER, BoundToken
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    jobs_pb2,
    matcher_service_pb2,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    resource_service_pb2,
    resource_service_pb2_grpc,
    values_pb2,
)
from pilotage.values.dependencies import Dependency
from pilotage.values.wire.dependencies import dependency_to_wire
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id

SUBMIT = "/pilotage.v1.JobService/SubmitJobs"
REQUEST_JOBS = "/pilotage.v1.MatcherService/RequestJobs"
REPORT_STATE = "/pilotage.v1.MatcherService/ReportState"
WAIT_TIMEOUT_S = 1800.0

_ID_DIGITS = 32
_ID_FIELD = bytes((1 << 3 | 2, _ID_DIGITS))
"""The first bytes of field 1, a string of this length, on the wire; it is `request_id` in every request."""


@dataclass(frozen=True, slots=True)
class LoadPilot:
    """A simulated pilot that has enrolled."""

    stamp: str
    token: BoundToken

    def metadata(self, method: str) -> Metadata:
        """Return the metadata of a call that it makes now."""
        return (*bearer(self.token.token), (PROOF_HEADER, self.token.prove(method)))


def fresh(body: bytes) -> bytes:
    """Return a request body with a new id in front."""
    return _ID_FIELD + secrets.token_hex(_ID_DIGITS // 2).encode() + body


class BenchGrid:
    """A running server with the sites of the day."""

    def __init__(self, server: RunningServer, day: LhcbDay) -> None:
        self.server = server
        self.day = day
        self.line = Line(server.address)
        self._operator = server.channel(server.token(Role.OPERATOR, owner="olga"), timeout_s=WAIT_TIMEOUT_S)
        self._users: dict[tuple[str, str], grpc.Channel] = {}

    def put_tree(self, text: str) -> int:
        """Make this tree the active one; returns its version."""
        request = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format="json")
        return resource_service_pb2_grpc.ResourceServiceStub(self._operator).PutTree(request).version

    def submit_day(self, jobs: int) -> int:
        """Submit about `jobs` jobs of the day; returns how many."""
        return sum(self.submit([each.jobs], each.owner, each.group) for each in self.day.task_queues(jobs))

    def submit(self, jobs: Iterable[JobDescription], owner: str, group: str) -> int:
        """Submit jobs of an owner; returns how many."""
        return len(self._user(owner, group).SubmitJobs(submission(jobs, group)).job_ids)

    def submit_workflow(self, jobs: Iterable[JobDescription], dependencies: Iterable[Dependency] = ()) -> int:
        """Submit a workflow of the first owner of the day; returns its id."""
        first = next(iter(self.day.task_queues(1)))
        request = submission(jobs, first.group)
        request.workflow.name = "flow.dag"
        request.dependencies.extend(map(dependency_to_wire, dependencies))
        return self._user(first.owner, first.group).SubmitJobs(request).workflow

    def _user(self, owner: str, group: str) -> job_service_pb2_grpc.JobServiceStub:
        if (owner, group) not in self._users:
            self._users[owner, group] = self.server.channel(self.user_token(owner, group), timeout_s=WAIT_TIMEOUT_S)
        return job_service_pb2_grpc.JobServiceStub(self._users[owner, group])

    def user_token(self, owner: str, group: str) -> str:
        """Return the token of a user of the VO."""
        return self.server.token(owner=owner, vo=VO, groups=(group,))

    def pilots(self, count: int, queues: Sequence[QueueId] = ()) -> list[LoadPilot]:
        """Register pilots, spread evenly over these queues, by default over all of the day."""
        queues = queues or self.day.queues()
        share, rest = divmod(count, len(queues))
        stub = pilot_service_pb2_grpc.PilotServiceStub(self._operator)
        found: list[list[LoadPilot]] = []
        for number, queue in enumerate(queues):
            wanted = share + (number < rest)
            if wanted:
                request = pilot_service_pb2.RegisterPilotsRequest(
                    request_id=request_id(), queue=queue_to_wire(queue), count=wanted, vos=[VO]
                )
                answer = stub.RegisterPilots(request)
                found.append([LoadPilot(each.stamp, self.server.enrolled(each.token)) for each in answer.pilots])
        return [pilots[index] for index in range(share + 1) for pilots in found if index < len(pilots)]

    def run(self, path: str, requests: Iterable[Request], outstanding: int) -> Run:
        """Make calls of a method in a closed loop; the result has the CPU time of the server."""
        return self._measured(lambda: closed_loop(self.line.method(path), requests, outstanding))

    def steady(self, path: str, requests: Iterable[Request], calls_per_s: float) -> Run:
        """Make calls of a method at a steady rate; the result has the CPU time of the server."""
        return self._measured(lambda: steady_load(self.line.method(path), requests, calls_per_s))

    def converse(self, path: str, first: Iterable[Request], follow: Follow) -> Run:
        """Make calls of a method that follow from answers; the result has the CPU time of the server."""
        return self._measured(lambda: run_conversations(self.line.method(path), first, follow))

    def _measured(self, make_calls: Callable[[], Run]) -> Run:
        before_s, profile = cpu_s(self.server_pid), threads_profile(self.server_pid)
        run = make_calls()
        run.server_cpu_s, run.profile = cpu_s(self.server_pid) - before_s, profile()
        return run

    @property
    def server_pid(self) -> int:
        """The process id of the server."""
        assert self.server.process is not None
        return self.server.process.pid

    def close(self) -> None:
        """Close the connections."""
        self.line.close()
        for channel in (self._operator, *self._users.values()):
            channel.close()


def bearer(token: str) -> Metadata:
    """Return the metadata of a call with this token."""
    return (("authorization", f"Bearer {token}"),)


def submission(jobs: Iterable[JobDescription], group: str) -> job_service_pb2.SubmitJobsRequest:
    """Return a request that submits jobs."""
    descriptions = [description_to_wire(each) for each in jobs]
    return job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=descriptions, group=group)


def a_slot(name: str = "slot1", time_left_s: float = 345_600.0) -> matcher_service_pb2.SlotOffer:
    """Return the offer of a single-core slot, by default with four days left."""
    free = values_pb2.Amounts(cpus=1, memory_mib=4000, disk_mib=20_000)
    return matcher_service_pb2.SlotOffer(name=name, free=free, time_left_s=time_left_s, cpu_power=10.0)


def an_offer(slots: int = 1, *, wait_s: float = 0.0, time_left_s: float = 345_600.0) -> bytes:
    """Return a request for `slots` slots, without its id."""
    offered = [a_slot(f"slot{number}", time_left_s) for number in range(1, slots + 1)]
    return matcher_service_pb2.RequestJobsRequest(slots=offered, wait_s=wait_s).SerializeToString()


def job_requests(pilots: Sequence[LoadPilot], calls: int, body: bytes) -> Iterator[Request]:
    """Yield requests of the pilots in turn."""
    return (Request(fresh(body), pilot.metadata) for pilot in islice(cycle(pilots), calls))


def submission_of_many(job: JobDescription, group: str, numbers: Iterable[int]) -> bytes:
    """Return a request, without its id, that submits jobs with different names and arguments."""
    request = job_service_pb2.SubmitJobsRequest(group=group)
    described = description_to_wire(job)
    for number in numbers:
        message = request.descriptions.add()
        message.CopyFrom(described)
        message.name = f"{job.name}-{number}"
        message.arguments = f"{job.arguments} --seed {number}"
    return request.SerializeToString()


def matches_in(answer: Answer) -> Sequence[matcher_service_pb2.Match]:
    """Return the matches of an answer."""
    return matcher_service_pb2.RequestJobsResponse.FromString(answer.body).matches


def must_match(run: Run) -> None:
    """Check that each call, made for one slot, was answered with one job."""
    for answer in run.answers:
        assert len(matches_in(answer)) == 1, "a call has no match"


def results_in(answer: Answer) -> Sequence[matcher_service_pb2.ReportResult]:
    """Return the results of the reports in an answer."""
    return matcher_service_pb2.ReportStateResponse.FromString(answer.body).results


def start(matches: Iterable[matcher_service_pb2.Match]) -> bytes:
    """Return a heartbeat, without its id, that reports that jobs run."""
    now = Timestamp()
    now.GetCurrentTime()
    reports = [
        jobs_pb2.JobReport(job_id=match.job_id, attempt=match.attempt, state=jobs_pb2.JOB_STATE_RUNNING, started=now)
        for match in matches
    ]
    return matcher_service_pb2.ReportStateRequest(reports=reports).SerializeToString()


def completion(matches: Iterable[matcher_service_pb2.Match]) -> bytes:
    """Return a heartbeat, without its id, that reports that these jobs have exited with 0."""
    return matcher_service_pb2.ReportStateRequest(reports=_reports_of_ends(matches)).SerializeToString()


def next_offer(slots: int, ended: Iterable[matcher_service_pb2.Match]) -> bytes:
    """Return a request for `slots` slots, without its id, that reports that these jobs have exited with 0."""
    reports = _reports_of_ends(ended)
    return an_offer(slots) + matcher_service_pb2.RequestJobsRequest(reports=reports).SerializeToString()


def _reports_of_ends(matches: Iterable[matcher_service_pb2.Match]) -> list[jobs_pb2.JobReport]:
    started, ended = Timestamp(), Timestamp()
    ended.GetCurrentTime()
    started.FromSeconds(ended.seconds - 3600)
    return [
        jobs_pb2.JobReport(
            job_id=match.job_id,
            attempt=match.attempt,
            state=jobs_pb2.JOB_STATE_DONE,
            outcome=jobs_pb2.OUTCOME_EXITED,
            exit_code=0,
            started=started,
            ended=ended,
            cpu_s=3500.0,
            wall_s=3600.0,
            peak_memory_mib=1800,
        )
        for match in matches
    ]
