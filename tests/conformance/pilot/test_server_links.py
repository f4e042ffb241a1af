"""Server links and clocks of a pilot: the real ones and the fake ones of tests behave alike."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage import clock
from pilotage.clock import boot_time_s
from pilotage.errors import NotFoundError
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import job_service_pb2, jobs_pb2, pilot_service_pb2, resource_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage.values.offers import SlotOffer
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, without_waiting
from pilotage_pilot.core.model import Report, ReportedState
from pilotage_pilot.link.base import NodeDescription, PilotServerLink
from pilotage_pilot.link.enrolment import EnrolledCredential, EnrolmentSecret
from pilotage_pilot.link.server_link import GrpcLink
from pilotage_server.core.identity import Role
from support.pilot_bench import a_job
from support.pilot_ports import EPOCH, FakeClocks, FakeServerLink
from support.server import RunningServer, request_id, running_server

QUEUE = QueueId("SITE", "ce01", "long")
TREE = {"sites": {"SITE": {"ces": {"ce01": {"queues": {"long": {"CPUs": 2}}}}}}}
NODE = NodeDescription("node1", Amounts(2, 4000, 10_000))


@dataclass
class LinkEnds:
    """A link and a function that submits a job at its other end."""

    link: PilotServerLink
    submit: Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with server.channel(server.token(Role.ADMIN, Role.OPERATOR)) as channel:
            put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=json.dumps(TREE), format="json")
            ResourceServiceStub(channel).PutTree(put)
        yield server


def pilot_token(server: RunningServer) -> str:
    request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), queue=queue_to_wire(QUEUE), count=1)
    with server.channel(server.token(Role.DIRECTOR)) as channel:
        return PilotServiceStub(channel).RegisterPilots(request).pilots[0].token


def submit(server: RunningServer) -> None:
    description = jobs_pb2.JobDescription(executable="/bin/true")
    with server.channel(server.token()) as channel:
        JobServiceStub(channel).SubmitJobs(
            job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
        )


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.process), "fake"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[LinkEnds]:
    if request.param == "fake":
        fake = FakeServerLink()
        yield LinkEnds(fake, lambda: fake.put(a_job(1)))
        return
    server: RunningServer = request.getfixturevalue("served")
    link = GrpcLink(
        Endpoint((server.address,)), QUEUE, EnrolledCredential(EnrolmentSecret(pilot_token(server)), boot_time_s)
    )
    yield LinkEnds(link, lambda: asyncio.to_thread(submit, server))
    await link.close()


def a_call(wait_s: float = 0.0, *reports: Report) -> RequestJobs:
    offer = SlotOffer("slot1", Amounts(2, 4000, 10_000), partitionable=True, time_left=timedelta(hours=1))
    return RequestJobs(request_id(), (offer,), reports, wait_s)


async def test_queue_of_pilot_is_known(ends: LinkEnds) -> None:
    assert (await ends.link.read_pools()).known


async def test_answer_without_jobs_has_its_request_id(ends: LinkEnds) -> None:
    call = a_call()
    answer = await ends.link.request_jobs(call)
    assert (answer.request_id, answer.jobs) == (call.request_id, ())


async def test_job_is_granted_renewed_and_reported(ends: LinkEnds) -> None:
    await ends.submit()
    job = (await ends.link.request_jobs(a_call(wait_s=10))).jobs[0]
    assert job.lease_s > 0
    beat = await ends.link.beat(SendHeartbeat(request_id(), (job.key,), (), None, False), NODE)
    assert [renewed.key for renewed in beat.renewed] == [job.key]
    assert beat.next_s > 0
    report = Report(job.key, ReportedState.DONE, Outcome.EXITED, exit_code=0, started=EPOCH, ended=EPOCH)
    for _ in ("first", "repeated"):
        answer = await ends.link.request_jobs(a_call(0.0, report))
        assert [(result.key, result.accepted) for result in answer.results] == [(job.key, True)]


async def test_long_poll_gets_new_job_and_repeats_its_answer(ends: LinkEnds) -> None:
    call = a_call(wait_s=20)
    waiting = asyncio.create_task(ends.link.request_jobs(call))
    await ends.submit()
    granted = await waiting
    assert len(granted.jobs) == 1
    repeated = await ends.link.request_jobs(without_waiting(call))
    assert [job.key for job in repeated.jobs] == [job.key for job in granted.jobs]


async def test_uploaded_file_is_stored_up_to_stated_size(ends: LinkEnds, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"x" * 700_000)
    checksum = hashlib.sha256(b"x" * 600_000).hexdigest()
    await ends.link.upload(path, checksum, 600_000)


async def test_missing_file_is_not_found(ends: LinkEnds) -> None:
    with pytest.raises(NotFoundError):
        _ = [piece async for piece in ends.link.download(1, "0" * 64)]


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_clocks_are_monotonic_and_utc(kind: str) -> None:
    fake = FakeClocks()
    now, boot_time_s = (clock.now, clock.boot_time_s) if kind == "real" else (fake.now, fake.boot_time_s)
    first, first_s = now(), boot_time_s()
    fake.advance(0.5)
    assert first.utcoffset() == timedelta(0)
    assert now() >= first
    assert boot_time_s() >= first_s
