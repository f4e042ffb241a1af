"""Calls to another Pilotage server in the names of those whose copies go there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pilotage.channel import Endpoint, open_async_channel
from pilotage.description_wire import CHECKSUM, check_file_name
from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.job_description import InputFile
from pilotage.v1 import identity_service_pb2, job_service_pb2, jobs_pb2
from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.wire import time_from_wire
from pilotage_agents.core.copies.remote_copies import RemoteJob
from pilotage_agents.router.file_transfers import pieces, written
from pilotage_agents.router.route_edges import LeftFile

_MOST_IN_A_CALL = 1000
_TRANSFER_S = 86_400.0
"""No file takes longer on its way; who waits for one that stands still gives it up long before."""

_STATE = "JOB_STATE_"
_SEE_ALL = frozenset({"operator", "admin"})
"""Roles that see the jobs of everybody."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How another server is reached: `token_file` holds the routes' own token there, None = they have none.

    `ca_file` (PEM) None = the system's authorities.
    """

    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a server takes the bearer of a token for; `sees_all` = also the jobs of others, of every VO."""

    owner: str
    vo: str
    sees_all: bool


class RemoteServer:
    """One other server; each call is made with a token. Every method raises a PilotageError when its call fails."""

    def __init__(self, addresses: Sequence[str], root_ca: bytes | None) -> None:
        # The tokens go with the calls: many people's copies share one line.
        self._channel = open_async_channel(Endpoint(tuple(addresses), root_ca=root_ca))
        self._jobs = JobServiceStub(self._channel)
        self._identities = IdentityServiceStub(self._channel)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def caller(self, token: str) -> Caller:
        """Return whom the server takes the token's bearer for."""
        answer = await self._identities.WhoAmI(identity_service_pb2.WhoAmIRequest(), metadata=_as(token))
        return Caller(answer.owner, answer.vo, not _SEE_ALL.isdisjoint(answer.roles))

    async def submit(self, token: str, request: job_service_pb2.SubmitJobsRequest) -> int:
        """Submit the one job of a request, however often; returns its id."""
        answer = await self._jobs.SubmitJobs(request, metadata=_as(token))
        if len(answer.job_ids) != 1:
            raise WorldError(f"the server made {len(answer.job_ids)} jobs of one", transient=False)
        return int(answer.job_ids[0])

    async def missing(self, token: str, files: Sequence[InputFile]) -> tuple[InputFile, ...]:
        """Return those of the files that the server does not have, each content once."""
        by_checksum = {file.checksum: file for file in files if file.checksum}
        if not by_checksum:
            return ()
        request = job_service_pb2.FindMissingFilesRequest(checksums=sorted(by_checksum))
        answer = await self._jobs.FindMissingFiles(request, metadata=_as(token))
        return tuple(by_checksum[checksum] for checksum in answer.missing)

    async def upload(self, token: str, path: Path, file: InputFile) -> None:
        """Bring a file's content."""
        await self._jobs.UploadFile(
            pieces(path, file.checksum or "", file.size), metadata=_as(token), timeout=_TRANSFER_S
        )

    async def jobs(self, token: str, job_ids: Sequence[int]) -> Mapping[int, RemoteJob]:
        """Return the jobs that there are, or that the token's owner may see."""
        found: dict[int, RemoteJob] = {}

        async def get(some: Sequence[int]) -> None:
            answer = await self._jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=some), metadata=_as(token))
            found.update({job.id: _job(job) for job in answer.jobs})

        await _for_those_there(job_ids, get)
        return found

    async def named(self, token: str, names: Sequence[str]) -> Mapping[str, int]:
        """Return the ids of the token's owner's jobs that have these names."""
        wanted, found = set(names), dict[str, int]()
        request = job_service_pb2.ListJobsRequest(newest_first=True)
        while wanted:
            answer = await self._jobs.ListJobs(request, metadata=_as(token))
            found |= {job.name: job.id for job in answer.jobs if job.name in wanted}
            wanted -= found.keys()
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        return found

    async def remove(self, token: str, job_ids: Sequence[int], reason: str) -> None:
        """Have jobs removed; those that have ended, or that the server does not show, are no error."""

        async def change(some: Sequence[int]) -> None:
            request = job_service_pb2.ChangeJobsRequest(
                request_id=uuid4().hex, job_ids=some, change=job_service_pb2.JOB_CHANGE_REMOVE, reason=reason
            )
            await self._jobs.ChangeJobs(request, metadata=_as(token))

        await _for_those_there(job_ids, change)

    async def outputs(self, token: str, job_id: int, folder: Path) -> tuple[LeftFile, ...]:
        """Write what a job has left into a folder that is there; what an earlier call has brought stays."""
        request = job_service_pb2.ListOutputFilesRequest(job_id=job_id)
        answer = await self._jobs.ListOutputFiles(request, metadata=_as(token))
        left = []
        for file in answer.files:
            check_file_name(file.name)
            _check_checksum(file.checksum)
            path = folder / file.checksum
            if not await asyncio.to_thread(path.exists):
                await self._download(token, job_id, file, path)
            left.append(LeftFile(file.name, path, truncated=file.truncated))
        return tuple(left)

    async def _download(self, token: str, job_id: int, file: jobs_pb2.OutputFile, path: Path) -> None:
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
        part = path.with_suffix(".part")
        arriving = self._jobs.DownloadFile(request, metadata=_as(token), timeout=_TRANSFER_S)
        await written(part, file.checksum, arriving)
        await asyncio.to_thread(part.rename, path)


async def _for_those_there(job_ids: Sequence[int], do: Callable[[Sequence[int]], Awaitable[None]]) -> None:
    """Do something for all jobs that the server shows, in as few calls as may be."""
    left = list(dict.fromkeys(job_ids))
    while left:
        try:
            await do(left[:_MOST_IN_A_CALL])
        except NotFoundError as error:
            # One that is missing spoils the call for the others.
            others = [job_id for job_id in left if str(job_id) != error.name]
            if len(others) == len(left):
                raise
            left = others
        else:
            left = left[_MOST_IN_A_CALL:]


def _as(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def _check_checksum(text: str) -> None:
    """Raise InvalidInputError unless it is a SHA-256 as it is written."""
    if not CHECKSUM.fullmatch(text):
        raise InvalidInputError(Violation("checksum", "is not 64 hex digits"))


def _job(job: jobs_pb2.Job) -> RemoteJob:
    return RemoteJob(
        state=_state(job.state),
        reason=job.reason,
        place=job.node,
        exit_code=job.exit_code if job.HasField("exit_code") else None,
        signal=job.signal if job.HasField("signal") else None,
        started=time_from_wire(job.started) if job.HasField("started") else None,
        ended=time_from_wire(job.ended) if job.HasField("ended") else None,
        wall_s=job.wall_clock_s,
    )


def _state(number: int) -> str:
    """Return the protocol's word for a state; a later release may have more of them."""
    if number not in jobs_pb2.JobState.values():
        return str(number)
    return jobs_pb2.JobState.Name(jobs_pb2.JobState.ValueType(number)).removeprefix(_STATE)
