"""Calls to another Pilotage server with the tokens of jobs' owners or of routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.job_description import InputFile
from pilotage.jobs.file_names import is_checksum
from pilotage.jobs.wire import check_file_name
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import identity_service_pb2, job_service_pb2, jobs_pb2
from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_agents.router.core.model import CollectedFile
from pilotage_agents.router.core.routed_job import RemoteJob
from pilotage_agents.router.server_link import upload_requests, write_download

_MAX_IN_A_CALL = 1000
_TRANSFER_S = 86_400.0
"""The deadline of a transfer; one without progress is given up long before."""

_STATE = "JOB_STATE_"
_SEE_ALL = frozenset({"operator", "admin"})
"""Roles that see the jobs of all users."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How another server is reached: `token_file` holds the routes' token there, None = they have none.

    `ca_file` (PEM) None = the system's CAs.
    """

    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class RemoteCaller:
    """The identity that a server gives to a token; `sees_all` = also the jobs of others, of every VO."""

    owner: str
    vo: str
    sees_all: bool


class RemoteServer:
    """Another server; each call takes a token. Every method raises a PilotageError when its call fails."""

    def __init__(self, addresses: Sequence[str], root_ca: bytes | None) -> None:
        # Tokens go with the calls: jobs of many users share one channel.
        self._channel = open_async_channel(Endpoint(tuple(addresses), root_ca=root_ca))
        self._jobs = JobServiceStub(self._channel)
        self._identities = IdentityServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def caller(self, token: str) -> RemoteCaller:
        """Return the identity that the server gives to the token."""
        answer = await self._identities.WhoAmI(identity_service_pb2.WhoAmIRequest(), metadata=_metadata(token))
        return RemoteCaller(answer.owner, answer.vo, not _SEE_ALL.isdisjoint(answer.roles))

    async def submit(self, token: str, request: job_service_pb2.SubmitJobsRequest) -> int:
        """Submit the one job of a request, which may be repeated; returns its id."""
        answer = await self._jobs.SubmitJobs(request, metadata=_metadata(token))
        if len(answer.job_ids) != 1:
            raise WorldError(f"the server made {len(answer.job_ids)} jobs of one", transient=False)
        return int(answer.job_ids[0])

    async def missing(self, token: str, files: Sequence[InputFile]) -> tuple[InputFile, ...]:
        """Return the files that the server does not have, each content once."""
        by_checksum = {file.checksum: file for file in files if file.checksum}
        if not by_checksum:
            return ()
        request = job_service_pb2.FindMissingFilesRequest(checksums=sorted(by_checksum))
        answer = await self._jobs.FindMissingFiles(request, metadata=_metadata(token))
        return tuple(by_checksum[checksum] for checksum in answer.missing)

    async def upload(self, token: str, path: Path, file: InputFile) -> None:
        """Upload a file's content."""
        await self._jobs.UploadFile(
            upload_requests(path, file.checksum or "", file.size), metadata=_metadata(token), timeout=_TRANSFER_S
        )

    async def jobs(self, token: str, job_ids: Sequence[int]) -> Mapping[int, RemoteJob]:
        """Return the jobs that exist and that the token may see."""
        found: dict[int, RemoteJob] = {}

        async def get(some: Sequence[int]) -> None:
            answer = await self._jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=some), metadata=_metadata(token))
            found.update({job.id: _job(job) for job in answer.jobs})

        await _for_existing(job_ids, get)
        return found

    async def named(self, token: str, names: Sequence[str]) -> Mapping[str, int]:
        """Return the ids of the token owner's jobs with these names."""
        wanted, found = set(names), dict[str, int]()
        request = job_service_pb2.ListJobsRequest(newest_first=True)
        while wanted:
            answer = await self._jobs.ListJobs(request, metadata=_metadata(token))
            found |= {job.name: job.id for job in answer.jobs if job.name in wanted}
            wanted -= found.keys()
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        return found

    async def remove(self, token: str, job_ids: Sequence[int], reason: str) -> None:
        """Remove jobs; one that has ended, or that the server does not show, is no error."""

        async def change(some: Sequence[int]) -> None:
            request = job_service_pb2.ChangeJobsRequest(
                request_id=uuid4().hex, job_ids=some, change=job_service_pb2.JOB_CHANGE_REMOVE, reason=reason
            )
            await self._jobs.ChangeJobs(request, metadata=_metadata(token))

        await _for_existing(job_ids, change)

    async def outputs(self, token: str, job_id: int, folder: Path) -> tuple[CollectedFile, ...]:
        """Download the output of a job into an existing folder; files of an earlier call stay."""
        request = job_service_pb2.ListOutputFilesRequest(job_id=job_id)
        answer = await self._jobs.ListOutputFiles(request, metadata=_metadata(token))
        collected = []
        for file in answer.files:
            check_file_name(file.name)
            if not is_checksum(file.checksum):
                raise InvalidInputError(Violation("checksum", "is not 64 hex digits"))
            path = folder / file.checksum
            if not await asyncio.to_thread(path.exists):
                await self._download(token, job_id, file, path)
            collected.append(CollectedFile(file.name, str(path), truncated=file.truncated))
        return tuple(collected)

    async def _download(self, token: str, job_id: int, file: jobs_pb2.OutputFile, path: Path) -> None:
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
        partial = path.with_suffix(".part")
        arriving = self._jobs.DownloadFile(request, metadata=_metadata(token), timeout=_TRANSFER_S)
        await write_download(partial, file.checksum, arriving)
        await asyncio.to_thread(partial.rename, path)


async def _for_existing(job_ids: Sequence[int], do: Callable[[Sequence[int]], Awaitable[None]]) -> None:
    """Call `do` for all jobs that the server shows, in as few calls as possible."""
    collected = list(dict.fromkeys(job_ids))
    while collected:
        try:
            await do(collected[:_MAX_IN_A_CALL])
        except NotFoundError as error:
            # One missing job fails the call for the others.
            others = [job_id for job_id in collected if str(job_id) != error.name]
            if len(others) == len(collected):
                raise
            collected = others
        else:
            collected = collected[_MAX_IN_A_CALL:]


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def _job(job: jobs_pb2.Job) -> RemoteJob:
    return RemoteJob(
        state=_state(job.state),
        reason=job.reason,
        node=job.node,
        exit_code=job.exit_code if job.HasField("exit_code") else None,
        signal=job.signal if job.HasField("signal") else None,
        started=time_from_wire(job.started) if job.HasField("started") else None,
        ended=time_from_wire(job.ended) if job.HasField("ended") else None,
        wall_s=job.wall_clock_s,
    )


def _state(number: int) -> str:
    """Return the name of a state in the protocol, or its number if a later release added it."""
    if number not in jobs_pb2.JobState.values():
        return str(number)
    return jobs_pb2.JobState.Name(jobs_pb2.JobState.ValueType(number)).removeprefix(_STATE)
