"""The link of a pilot to a running server: requests, heartbeats and files."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.clock import boot_time_s
from pilotage.errors import UnauthenticatedError
from pilotage.rpc.channel import Endpoint
from pilotage.v1 import jobs_pb2
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, Outcome, ReportedOutput
from pilotage.values.offers import SlotOffer
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, without_waiting
from pilotage_pilot.core.model import Now, Report, ReportedState
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.link.enrolment import EnrolledCredential, EnrolmentSecret
from pilotage_pilot.link.server_link import GrpcLink
from support.pilot_bench import built_in_slots
from support.pilot_ports import EPOCH
from support.process_grid import QUEUE, ProcessGrid, a_process_grid
from support.server import request_id

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared_grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("grid")) as grid:
        yield grid


@pytest.fixture
def grid(shared_grid: ProcessGrid, tmp_path: Path) -> ProcessGrid:
    return shared_grid.of_another_vo(tmp_path)


@asynccontextmanager
async def a_link(grid: ProcessGrid, token: str | None = None) -> AsyncIterator[GrpcLink]:
    secret = EnrolmentSecret(token if token is not None else grid.pilot_token())
    link = GrpcLink(Endpoint((grid.server.address,)), QUEUE, EnrolledCredential(secret, boot_time_s))
    try:
        yield link
    finally:
        await link.close()


def a_request(wait_s: float = 0.0, *reports: Report) -> RequestJobs:
    offer = SlotOffer("slot1", Amounts(2, 4000, 10_000), partitionable=True, time_left=timedelta(hours=1))
    return RequestJobs(request_id(), (offer,), reports, wait_s)


NODE = NodeDescription("node1", Amounts(2, 4000, 10_000), attributes={"GlideinId": "g1"})


async def test_link_reads_pools_requests_jobs_and_renews_leases(grid: ProcessGrid) -> None:
    slots = built_in_slots(NODE.amounts, Now(EPOCH, 1000.0)).slots()
    async with a_link(grid) as link:
        assert (await link.read_pools()).known
        assert (await link.request_jobs(a_request())).jobs == ()
        job_id = grid.submit(script="echo hi", environment={"A": "b"})
        request = a_request()
        granted = await link.request_jobs(request)
        job = granted.jobs[0]
        assert (job.key, job.slot, job.owner) == (AttemptKey(job_id, 1), "slot1", "alice")
        assert job.description.environment["A"] == "b"
        heartbeat = await link.beat(SendHeartbeat(request_id(), (job.key,), (), slots, False), NODE)
        assert [renewed.key for renewed in heartbeat.renewed] == [job.key]
        assert heartbeat.next_s > 0
        content = ReportedOutput("stdout", hashlib.sha256(b"hi\n").hexdigest(), 3, b"hi\n")
        report = Report(
            job.key,
            ReportedState.DONE,
            Outcome.EXITED,
            exit_code=0,
            started=EPOCH,
            ended=EPOCH,
            output_files=(content,),
        )
        answer = await link.request_jobs(a_request(0.0, report))
        assert [(result.key, result.accepted) for result in answer.results] == [(job.key, True)]
    assert grid.output(job_id) == {"stdout": b"hi\n"}


async def test_repeated_request_gets_the_jobs_of_the_first(grid: ProcessGrid) -> None:
    async with a_link(grid) as link:
        request = a_request(wait_s=20)
        first = asyncio.create_task(link.request_jobs(request))
        job_id = grid.submit(script="echo hi")
        granted = await first
        repeated = await link.request_jobs(without_waiting(request))
        assert [job.key for job in repeated.jobs] == [job.key for job in granted.jobs] == [AttemptKey(job_id, 1)]


async def test_link_downloads_and_uploads_files(grid: ProcessGrid, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    in_file = jobs_pb2.InputFile(name="in", checksum=grid.upload(content[:1000]), size=1000)
    job_id = grid.submit(script="cat in", input_files=[in_file])
    path = tmp_path / "out"
    _write(path, content)
    async with a_link(grid) as link:
        await link.request_jobs(a_request())
        chunks = [chunk async for chunk in link.download(job_id, in_file.checksum)]
        assert b"".join(chunks) == content[:1000]
        await link.upload(path, hashlib.sha256(content[:1_500_000]).hexdigest(), 1_500_000)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_invalid_token_is_unauthenticated(grid: ProcessGrid) -> None:
    async with a_link(grid, "nonsense") as link:
        with pytest.raises(UnauthenticatedError):
            await link.request_jobs(a_request())
