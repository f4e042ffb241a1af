"""A pilot as people start it, with a real server: jobs, files, commands, and the deaths of either."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilotage.channel import Endpoint
from pilotage.errors import UnauthenticatedError
from pilotage.resource_tree import QueueId
from pilotage.v1 import (
    job_service_pb2,
    jobs_pb2,
    pilot_service_pb2,
    resource_service_pb2,
)
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.wire import queue_to_wire
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, SlotOffer, without_waiting
from pilotage_pilot.core.jobs import AttemptKey, Outcome, Report, ReportedState, StoredFile
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slots import Partition
from pilotage_pilot.link.base import NodeFacts
from pilotage_pilot.link.server_link import GrpcLink
from pilotage_server.core.identity import Role
from support.fake_pilot_edges import EPOCH
from support.server import RunningServer, request_id, running_server
from support.until import until

QUEUE = QueueId("SITE", "ce01", "long")
TREE = {"sites": {"SITE": {"ces": {"ce01": {"queues": {"long": {"CPUs": 2, "Memory": 4000}}}}}}}
TIMEOUT_S = 30


@pytest.fixture
def grid(tmp_path: Path) -> Any:
    with running_server(tmp_path / "server", heartbeat_s=1) as server:
        with server.channel(server.token(Role.ADMIN, Role.OPERATOR)) as channel:
            put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=json.dumps(TREE), format="json")
            ResourceServiceStub(channel).PutTree(put)
        yield Grid(server, tmp_path)


@dataclass
class Grid:
    """A server with one queue."""

    server: RunningServer
    folder: Path

    def pilot_token(self) -> str:
        with self.server.channel(self.server.token(Role.AGENT)) as channel:
            ask = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), queue=queue_to_wire(QUEUE), count=1)
            return PilotServiceStub(channel).RegisterPilots(ask).pilots[0].token

    def submit(self, *, executable: str = "/bin/sh", script: str = "", **fields: Any) -> int:
        arguments = f"-c '{script}'" if script else ""
        description = jobs_pb2.JobDescription(executable=executable, arguments=arguments, **fields)
        return int(self._jobs("SubmitJobs", request_id=request_id(), descriptions=[description]).job_ids[0])

    def upload(self, content: bytes) -> str:
        checksum = hashlib.sha256(content).hexdigest()
        piece = job_service_pb2.UploadFileRequest(checksum=checksum, size=len(content), content=content)
        with self.server.channel(self.server.token()) as channel:
            JobServiceStub(channel).UploadFile(iter([piece]))
        return checksum

    def output(self, job_id: int) -> dict[str, bytes]:
        files = self._jobs("ListOutputFiles", job_id=job_id).files
        with self.server.channel(self.server.token()) as channel:
            stub = JobServiceStub(channel)
            return {
                file.name: b"".join(
                    piece.content
                    for piece in stub.DownloadFile(
                        job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
                    )
                )
                for file in files
            }

    def job(self, job_id: int) -> jobs_pb2.Job:
        found: jobs_pb2.Job = self._jobs("GetJobs", job_ids=[job_id]).jobs[0]
        return found

    def causes(self, job_id: int) -> list[str]:
        return [event.cause for event in self._jobs("GetJobEvents", job_id=job_id).events]

    def remove(self, job_id: int) -> None:
        change = {"job_ids": [job_id], "change": job_service_pb2.JOB_CHANGE_REMOVE, "reason": "not needed"}
        self._jobs("ChangeJobs", request_id=request_id(), **change)

    async def done(self, job_id: int) -> jobs_pb2.Job:
        return await asyncio.to_thread(self._wait, job_id)

    def _wait(self, job_id: int) -> jobs_pb2.Job:
        answer = self._jobs("WaitForJobs", job_ids=[job_id], timeout_s=TIMEOUT_S)
        assert answer.all_final, f"job {job_id} is {answer.jobs[0]}"
        job: jobs_pb2.Job = answer.jobs[0]
        return job

    def _jobs(self, method: str, **fields: Any) -> Any:
        with self.server.channel(self.server.token(), timeout_s=TIMEOUT_S + 5) as channel:
            return getattr(JobServiceStub(channel), method)(getattr(job_service_pb2, f"{method}Request")(**fields))

    @asynccontextmanager
    async def pilot(self, **settings: Any) -> AsyncIterator[PilotProcess]:
        """Start a pilot by its command; what is left of it at the end of the block is killed."""
        scratch = self.folder / "scratch"
        token = self.folder / f"{request_id()}.token"
        token.write_text(self.pilot_token())
        given = {"server": [self.server.address], "token_file": str(token), "scratch": str(scratch)}
        config = token.with_suffix(".json")
        config.write_text(json.dumps({**given, "cpus": 2, "memory_mib": 4000, "grace_s": 1, **settings}))
        log = token.with_suffix(".log")
        with log.open("wb") as stderr:
            command = ("-m", "pilotage_pilot.main", "run", "--config", str(config))
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=stderr)
        try:
            yield PilotProcess(process, log, scratch)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@dataclass
class PilotProcess:
    """A pilot's process."""

    process: asyncio.subprocess.Process
    log: Path
    scratch: Path

    async def ends(self) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the last line of the log."""
        async with asyncio.timeout(TIMEOUT_S):
            code = await self.process.wait()
        return code, json.loads(_read(self.log).splitlines()[-1])


def _read(path: Path) -> str:
    return path.read_text()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_job_runs_with_its_files_and_its_owner_gets_what_it_leaves(grid: Grid, tmp_path: Path) -> None:
    async with grid.pilot():
        content = b"line\n" * 50_000
        checksum = grid.upload(content)
        in_file = jobs_pb2.InputFile(name="data/in", checksum=checksum, size=len(content))
        job_id = grid.submit(
            script="sort -u data/in; cp data/in out.dat; echo warn >&2; exit 4",
            input_files=[in_file],
            output_files=["*.dat"],
        )
        job = await grid.done(job_id)
    assert (job.state, job.exit_code, job.slot[:5]) == (jobs_pb2.JOB_STATE_FAILED, 4, "slot1")
    assert grid.output(job_id) == {"stdout": b"line\n", "stderr": b"warn\n", "out.dat": content}


async def test_a_removed_job_is_killed_and_the_slot_takes_the_next(grid: Grid, tmp_path: Path) -> None:
    async with grid.pilot(cpus=1):
        mark = tmp_path / "pid"
        job_id = grid.submit(script=f"echo $$ > {mark}; sleep 600")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        grid.remove(job_id)
        assert (await grid.done(grid.submit(script="echo next"))).state == jobs_pb2.JOB_STATE_DONE
        assert not is_alive(int(_read(mark)))
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_REMOVED


async def test_a_pilot_that_is_told_to_end_gives_its_job_back_and_leaves_nothing(grid: Grid, tmp_path: Path) -> None:
    async with grid.pilot() as pilot:
        mark = tmp_path / "pid"
        job_id = grid.submit(script=f"echo $$ > {mark}; sleep 600")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        pilot.process.send_signal(signal.SIGTERM)
        code, last = await pilot.ends()
        assert (code, last["event"], last["exit_code"]) == (0, "pilot ends", 0)
        assert "SIGTERM" in last["reason"]
        assert grid.job(job_id).state == jobs_pb2.JOB_STATE_WAITING
        assert "evicted" in grid.causes(job_id)
        assert not is_alive(int(_read(mark)))
        assert os.listdir(pilot.scratch) == []
    async with grid.pilot():
        await until(lambda: grid.job(job_id).state == jobs_pb2.JOB_STATE_RUNNING)
        assert grid.job(job_id).attempt == 2


async def test_an_idle_pilot_ends_at_once_when_told(grid: Grid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in _read(pilot.log))
        pilot.process.send_signal(signal.SIGTERM)
        code, _ = await pilot.ends()
        assert code == 0


async def test_a_pilot_without_work_ends_by_itself(grid: Grid) -> None:
    job_id = grid.submit(script="echo only")
    async with grid.pilot(max_idle_s=0) as pilot:
        code, last = await pilot.ends()
    assert (code, grid.job(job_id).state) == (0, jobs_pb2.JOB_STATE_DONE)
    assert "no job" in last["reason"]


async def test_the_payloads_of_a_killed_pilot_die_and_the_next_pilot_clears_up(grid: Grid, tmp_path: Path) -> None:
    async with grid.pilot() as pilot:
        mark = tmp_path / "pid"
        grid.submit(script=f"setsid sleep 600 & echo $! $$ > {mark}; wait")
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        pilot.process.kill()
        pids = [int(pid) for pid in _read(mark).split()]
        await until(lambda: not any(is_alive(pid) for pid in pids))
        await pilot.process.wait()
        assert len(os.listdir(pilot.scratch)) == 1
    async with grid.pilot(max_idle_s=0) as following:
        await following.ends()
        assert os.listdir(following.scratch) == []


async def test_a_job_outlives_the_death_of_its_server(grid: Grid, tmp_path: Path) -> None:
    async with grid.pilot():
        started, go_on = tmp_path / "started", tmp_path / "go-on"
        job_id = grid.submit(script=f"touch {started}; while [ ! -e {go_on} ]; do sleep 0.05; done; echo through")
        await until(started.exists)
        grid.server.kill()
        go_on.touch()
        await asyncio.to_thread(grid.server.start)
        job = await grid.done(job_id)
    assert (job.state, job.attempt) == (jobs_pb2.JOB_STATE_DONE, 1)
    assert grid.output(job_id)["stdout"] == b"through\n"


async def test_a_pilot_whose_credential_is_refused_says_so(grid: Grid) -> None:
    async with grid.pilot() as pilot:
        await until(lambda: "pilot starts" in _read(pilot.log))
    forged = grid.pilot_token().rsplit(".", 1)[0] + ".AAAA"
    async with grid.pilot(token=forged, token_file=None) as pilot:
        code, last = await pilot.ends()
    assert (code, "refuses" in last["reason"]) == (3, True)


@asynccontextmanager
async def a_link(grid: Grid, token: str | None = None) -> AsyncIterator[GrpcLink]:
    endpoint = Endpoint((grid.server.address,), token if token is not None else grid.pilot_token())
    link = GrpcLink(endpoint, QUEUE)
    try:
        yield link
    finally:
        await link.close()


def a_call(wait_s: float = 0.0, *reports: Report) -> RequestJobs:
    offer = SlotOffer("slot1", Amounts(2, 4000, 10_000), 3600.0, 1.0)
    return RequestJobs(request_id(), (offer,), reports, wait_s)


NODE = NodeFacts("node1", Amounts(2, 4000, 10_000), attributes={"GlideinId": "g1"})


async def test_the_link_asks_for_pools_jobs_and_renewals(grid: Grid) -> None:
    slots = Partition(NODE.amounts, (), Moment(EPOCH, 1000.0)).slots()
    async with a_link(grid) as link:
        assert (await link.read_pools()).known
        assert (await link.request_jobs(a_call())).jobs == ()
        job_id = grid.submit(script="echo hi", environment={"A": "b"})
        call = a_call()
        granted = await link.request_jobs(call)
        job = granted.jobs[0]
        assert (job.key, job.slot, job.owner) == (AttemptKey(job_id, 1), "slot1", "alice")
        assert job.description.environment["A"] == "b"
        beat = await link.beat(SendHeartbeat(request_id(), (job.key,), (), slots, False), NODE)
        assert [renewed.key for renewed in beat.renewed] == [job.key]
        assert beat.next_s > 0
        content = StoredFile("stdout", hashlib.sha256(b"hi\n").hexdigest(), 3, b"hi\n")
        report = Report(
            job.key,
            ReportedState.DONE,
            Outcome.EXITED,
            exit_code=0,
            started=EPOCH,
            ended=EPOCH,
            output_files=(content,),
        )
        answer = await link.request_jobs(a_call(0.0, report))
        assert [(result.key, result.accepted) for result in answer.results] == [(job.key, True)]
    assert grid.output(job_id) == {"stdout": b"hi\n"}


async def test_a_request_that_is_taken_back_and_repeated_gives_the_jobs_of_the_first(grid: Grid) -> None:
    async with a_link(grid) as link:
        call = a_call(wait_s=20)
        first = asyncio.create_task(link.request_jobs(call))
        job_id = grid.submit(script="echo hi")
        granted = await first
        again = await link.request_jobs(without_waiting(call))
        assert [job.key for job in again.jobs] == [job.key for job in granted.jobs] == [AttemptKey(job_id, 1)]


async def test_the_link_brings_files_both_ways(grid: Grid, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    in_file = jobs_pb2.InputFile(name="in", checksum=grid.upload(content[:1000]), size=1000)
    job_id = grid.submit(script="cat in", input_files=[in_file])
    path = tmp_path / "out"
    _write(path, content)
    async with a_link(grid) as link:
        await link.request_jobs(a_call())
        pieces = [piece async for piece in link.download(job_id, in_file.checksum)]
        assert b"".join(pieces) == content[:1000]
        await link.upload(path, hashlib.sha256(content[:1_500_000]).hexdigest(), 1_500_000)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_a_broken_token_is_told_apart(grid: Grid) -> None:
    async with a_link(grid, "nonsense") as link:
        with pytest.raises(UnauthenticatedError):
            await link.request_jobs(a_call())
