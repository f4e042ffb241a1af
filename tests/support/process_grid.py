"""A server with one queue, its users, and pilots, as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import job_service_pb2, jobs_pb2, pilot_service_pb2, resource_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.values_pb2 import Value
from pilotage_pilot.link.server_link import stamp_of_token
from pilotage_pilot.supervise.proc import children_of
from pilotage_server.core.identity import Role
from support.payload_paths import payload_paths
from support.processes import processes_with
from support.server import VO, RunningServer, request_id, running_server

PILOT = (sys.executable, "-m", "pilotage_pilot.main")
QUEUE = QueueId("SITE", "ce01", "long")
SIZES = {"CPUs": 2, "Memory": 4000}
TREE = {"sites": {"SITE": {"ces": {"ce01": {"queues": {"long": SIZES}}}}}}
TIMEOUT_S = 30


@contextmanager
def a_process_grid(folder: Path, **settings: object) -> Iterator[ProcessGrid]:
    """Run a server with the tree and these settings until the end of the block."""
    with running_server(folder / "server", **{"heartbeat_s": 1, **settings}) as server:
        grid = ProcessGrid(server, folder)
        grid.put_tree(TREE)
        yield grid


@dataclass
class ProcessGrid:
    """A server with one queue, a user, and pilots that run jobs of these VOs; () = all VOs."""

    server: RunningServer
    folder: Path
    vos: tuple[str, ...] = ()

    def of_another_vo(self, folder: Path) -> ProcessGrid:
        """Return the same server with a user and pilots of a new VO, which share no jobs with others."""
        return ProcessGrid(self.server, folder, (f"vo-{request_id()}",))

    def put_tree(self, tree: Mapping[str, Any]) -> None:
        """Make this tree the active one."""
        put = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=json.dumps(tree), format="json")
        with self.server.channel(self.server.token(Role.ADMIN, Role.OPERATOR)) as channel:
            ResourceServiceStub(channel).PutTree(put)

    def user_token(self) -> str:
        return self.server.token(vo=self.vos[0] if self.vos else VO)

    def pilot_token(self) -> str:
        with self.server.channel(self.server.token(Role.DIRECTOR)) as channel:
            request = pilot_service_pb2.RegisterPilotsRequest(
                request_id=request_id(), queue=queue_to_wire(QUEUE), count=1, vos=self.vos
            )
            return PilotServiceStub(channel).RegisterPilots(request).pilots[0].token

    def submit(self, *, executable: str = "/bin/sh", script: str = "", **fields: Any) -> int:
        arguments = f"-c '{script}'" if script else ""
        description = jobs_pb2.JobDescription(executable=executable, arguments=arguments, **fields)
        return int(self._jobs("SubmitJobs", request_id=request_id(), descriptions=[description]).job_ids[0])

    def upload(self, content: bytes) -> str:
        checksum = hashlib.sha256(content).hexdigest()
        piece = job_service_pb2.UploadFileRequest(checksum=checksum, size=len(content), content=content)
        with self.server.channel(self.user_token()) as channel:
            JobServiceStub(channel).UploadFile(iter([piece]))
        return checksum

    def output(self, job_id: int) -> dict[str, bytes]:
        files = self._jobs("ListOutputFiles", job_id=job_id).files
        with self.server.channel(self.user_token()) as channel:
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

    def attempts(self, job_id: int) -> Sequence[jobs_pb2.Attempt]:
        attempts: Sequence[jobs_pb2.Attempt] = self._jobs("ListAttempts", job_ids=[job_id]).attempts
        return attempts

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
        with self.server.channel(self.user_token(), timeout_s=TIMEOUT_S + 5) as channel:
            return getattr(JobServiceStub(channel), method)(getattr(job_service_pb2, f"{method}Request")(**fields))

    @asynccontextmanager
    async def pilot(
        self, program: Sequence[str] = PILOT, environment: Mapping[str, str] | None = None, /, **settings: Any
    ) -> AsyncIterator[PilotProcess]:
        """Start a pilot process; it is killed at the end of the block."""
        scratch = self.folder / "scratch"
        file = self.folder / f"{request_id()}.token"
        file.write_text(token := self.pilot_token())
        defaults: dict[str, Any] = {"server": [self.server.address], "token_file": str(file), "scratch": str(scratch)}
        config = file.with_suffix(".json")
        defaults |= {"cpus": 2, "memory_mib": 4000, "grace_s": 1} | payload_paths(self.folder)
        config.write_text(json.dumps({**defaults, **settings}))
        log = file.with_suffix(".log")
        with log.open("wb") as stderr:
            command = (*program, "run", "--config", str(config))
            process = await asyncio.create_subprocess_exec(*command, stderr=stderr, env=environment)
        try:
            yield PilotProcess(process, log, scratch, stamp_of_token(token))
        finally:
            if process.returncode is None:
                # Its watchdog ends the payloads, and then itself.
                PilotProcess(process, log, scratch, "").kill()
            await process.wait()


@dataclass
class PilotProcess:
    """A pilot with its log and scratch folder; `process` is its watchdog, which passes on signals."""

    process: asyncio.subprocess.Process
    log: Path
    scratch: Path
    stamp: str

    @property
    def pid(self) -> int:
        """The process below the watchdog, which manages the slots."""
        (pid,) = children_of(self.process.pid)
        return pid

    def payload_pids(self, job_id: int) -> set[int]:
        """Return the living processes of a job that have its environment."""
        return processes_with(f"{self.scratch}/", f"/jobs/{job_id}.")

    def kill(self) -> None:
        """Kill the pilot, but not its watchdog; a process without a child has not become a watchdog yet."""
        children = children_of(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(children[0] if children else self.process.pid, signal.SIGKILL)

    async def ends(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end of the process; returns the exit code and the last line of the log."""
        async with asyncio.timeout(TIMEOUT_S):
            code = await self.process.wait()
        return code, json.loads(read_text(self.log).splitlines()[-1])


def read_text(path: Path) -> str:
    """Return the text of a file; a function, since a coroutine may not read files itself."""
    return path.read_text()


@dataclass
class RealJobs:
    """A user of a real server, with the calls that the tests of router links need."""

    server: RunningServer

    def submit(self, jobs: int = 1, *, executable: str = "simulate", files: Sequence[Any] = (), **ad: Any) -> list[int]:
        attributes = {name: Value(flag=each) if each is True else Value(text=each) for name, each in ad.items()}
        description = jobs_pb2.JobDescription(
            executable=executable, attributes=attributes, count=jobs, input_files=files
        )
        request = job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
        return list(self._call("SubmitJobs", request).job_ids)

    def change(self, change: str, job_id: int) -> None:
        number = job_service_pb2.JobChange.Value(f"JOB_CHANGE_{change.upper()}")
        request = job_service_pb2.ChangeJobsRequest(request_id=request_id(), job_ids=[job_id], change=number)
        self._call("ChangeJobs", request)

    def state(self, job_id: int) -> str:
        job = self._call("GetJobs", job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0]
        return jobs_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")

    def ad(self, job_id: int) -> dict[str, AdValue]:
        """Return the ad of a job as users see it."""
        return Ad.read(self._call("GetJobAd", job_service_pb2.GetJobAdRequest(job_id=job_id)).ad).plain()

    def output(self, job_id: int) -> dict[str, bytes]:
        with self.server.channel(self.server.token()) as channel:
            stub = JobServiceStub(channel)
            files = stub.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id)).files
            requests = [job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum) for file in files]
            pieces = [b"".join(piece.content for piece in stub.DownloadFile(each)) for each in requests]
        return dict(zip((file.name for file in files), pieces, strict=True))

    def _call(self, method: str, request: Any) -> Any:
        with self.server.channel(self.server.token()) as channel:
            return getattr(JobServiceStub(channel), method)(request)
