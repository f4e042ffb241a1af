"""The job router's link to a real server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc.aio
import structlog

from pilotage.errors import WorldError
from pilotage.job_description import InputFile
from pilotage.job_output import digest_of, open_regular
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2, route_service_pb2, route_service_pb2_grpc
from pilotage.v1.values_pb2 import Turn as TurnMessage
from pilotage_agents.core.copies.copy_report import without_output
from pilotage_agents.core.routes.told_routes import ToldTable
from pilotage_agents.link import Turn
from pilotage_agents.router.file_transfers import pieces, written
from pilotage_agents.router.progress import while_it_moves
from pilotage_agents.router.route_edges import (
    CopiesAnswer,
    CopyReport,
    FeedPage,
    JobMoved,
    KnownCopy,
    LeftFile,
    NewCopy,
    NotRouted,
    RoutableJob,
    Routed,
    UnwantedCopy,
)
from pilotage_agents.router.router_wire import (
    key_of,
    known_copy,
    new_copy_to_wire,
    outline_to_wire,
    report_to_wire,
    routable_job,
    state_name,
    unwanted_copy,
)

log = structlog.get_logger()

MOST_EVENTS = 10_000
"""So many events come in a page, and a few more."""

_INLINE_BYTES = 64 << 10
_INLINE_IN_ALL = 8 << 20
_TRANSFER_S = 86_400.0
"""No file takes longer on its way; one that stands still is given up long before."""

_STILL_S = 120.0


class RouterServerLink:
    """Calls a server over gRPC, in a turn."""

    def __init__(self, channel: grpc.aio.Channel, turn: Turn, *, most_events: int = MOST_EVENTS) -> None:
        self._router = turn.agent
        self._turn = TurnMessage(agent=turn.agent, holder=turn.holder)
        self._most_events = most_events
        self._jobs = job_service_pb2_grpc.JobServiceStub(channel)
        self._routes = route_service_pb2_grpc.RouteServiceStub(channel)

    async def next_events(self, after: int) -> FeedPage:
        """Return what the feed has by now after a position (0 = from the oldest kept), or the first part of that."""
        request = job_service_pb2.WatchEventsRequest(after_position=after, until_now=True)
        events: list[JobMoved] = []
        call = self._jobs.WatchEvents(request)
        async for message in call:
            events += [JobMoved(each.job_id, state_name(each.to), each.cause) for each in message.events]
            after = message.position
            if len(events) >= self._most_events:
                call.cancel()
                break
        return FeedPage(tuple(events), after)

    async def look_at(self, job_ids: Sequence[int]) -> tuple[RoutableJob, ...]:
        """Return those of the jobs (at most 1,000) that there are."""
        found: list[RoutableJob] = []
        while job_ids:  # each answer has room for one at least
            answer = await self._routes.LookAtJobs(route_service_pb2.LookAtJobsRequest(job_ids=job_ids))
            found += [job for message in answer.jobs if (job := routable_job(message)) is not None]
            job_ids = answer.unseen
        return tuple(found)

    async def route(self, request: str, copies: Sequence[NewCopy]) -> tuple[Routed | NotRouted, ...]:
        """Take jobs for copies (at most 1,000); returns one answer each, in order."""
        asked = route_service_pb2.RouteJobsRequest(
            request_id=request, turn=self._turn, copies=map(new_copy_to_wire, copies)
        )
        answer = await self._routes.RouteJobs(asked)
        return tuple(
            Routed(each.job_id, each.attempt) if each.attempt else NotRouted(each.job_id, each.refusal)
            for each in answer.jobs
        )

    async def report(self, request: str, reports: Sequence[CopyReport]) -> CopiesAnswer:
        """Say what became of copies (at most 1,000), with their files; none = only ask which are wanted no more."""
        if not reports:
            return CopiesAnswer({}, await self._unwanted(request))
        room = _INLINE_IN_ALL
        messages = []
        for report in reports:
            try:
                files, room = await self._files(report, room)
                messages.append(report_to_wire(report, files))
            except OSError as error:
                log.warning("what a copy left cannot be read", job_id=report.job_id, reason=str(error))
                messages.append(report_to_wire(without_output(report, str(error)), ()))
        answer = await self._routes.ReportCopies(
            route_service_pb2.ReportCopiesRequest(request_id=request, turn=self._turn, copies=messages)
        )
        refused = {(each.job_id, each.attempt): each.refusal for each in answer.results if not each.accepted}
        malformed = {(each.job_id, each.attempt): each.fault for each in answer.malformed}
        return CopiesAnswer(refused, tuple(map(unwanted_copy, answer.unwanted)), malformed)

    async def _unwanted(self, request: str) -> tuple[UnwantedCopy, ...]:
        """Return all copies that are wanted no more; who only asks may ask for all parts under one id."""
        asked = route_service_pb2.ReportCopiesRequest(request_id=request, turn=self._turn)
        unwanted: list[UnwantedCopy] = []
        while True:
            answer = await self._routes.ReportCopies(asked)
            unwanted += map(unwanted_copy, answer.unwanted)
            if not answer.more_unwanted:
                return tuple(unwanted)
            asked.unwanted_after.CopyFrom(key_of(answer.unwanted[-1]))

    async def copies(self) -> tuple[KnownCopy, ...]:
        """Return the copies that this router has still to bring to an end."""
        asked = route_service_pb2.ListCopiesRequest(router=self._router)
        copies: list[KnownCopy] = []
        while True:
            answer = await self._routes.ListCopies(asked)
            copies += map(known_copy, answer.copies)
            if not answer.more:
                return tuple(copies)
            asked.after.CopyFrom(key_of(answer.copies[-1]))

    async def tell_routes(self, table: ToldTable) -> None:
        """Replace what the server tells people of the routes."""
        request = route_service_pb2.PutRoutesRequest(
            turn=self._turn,
            routes=[outline_to_wire(route) for route in table.routes],
            constraint=table.constraint,
            max_jobs=table.max_jobs,
            left_out=[route_service_pb2.LeftOutRoute(name=name, reason=reason) for name, reason in table.left_out],
        )
        await self._routes.PutRoutes(request)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        """Write the file at `to`, whole and checked; raises a PilotageError."""
        checksum = file.checksum or ""
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum, turn=self._turn)
        await written(to, checksum, self._jobs.DownloadFile(request, timeout=_TRANSFER_S))

    async def bring(self, files: Sequence[LeftFile]) -> None:
        """Bring files to the server, as far as they are too large to travel with a report; raises a PilotageError."""
        for left in files:
            with suppress(OSError):  # the report says it of one that cannot be read
                if await asyncio.to_thread(_small, left, _INLINE_BYTES) is None:
                    await self._brought(left)

    async def _files(self, report: CopyReport, room: int) -> tuple[list[jobs_pb2.OutputFile], int]:
        """Return what a copy has left, brought where it is large, and how many bytes may still travel in the call.

        Raises OSError for a file that cannot be read.
        """
        files = []
        for left in report.outcome.files if report.outcome else ():
            try:
                file = await asyncio.to_thread(_small, left, min(room, _INLINE_BYTES))
                if file is None:
                    file = await self._brought(left)
            except OSError as error:
                raise OSError(f"{left.name}: {error.strerror or error}") from error
            room -= len(file.content)
            files.append(file)
        return files, room

    async def _brought(self, left: LeftFile) -> jobs_pb2.OutputFile:
        size = (await asyncio.to_thread(left.path.stat)).st_size
        checksum, size = await asyncio.to_thread(digest_of, left.path, size)
        asked = job_service_pb2.FindMissingFilesRequest(checksums=[checksum])
        if (await self._jobs.FindMissingFiles(asked)).missing:
            try:
                async with while_it_moves(_STILL_S):
                    await self._jobs.UploadFile(pieces(left.path, checksum, size), timeout=_TRANSFER_S)
            except TimeoutError as error:
                raise WorldError(f"{left.name}: nothing of it moved for {_STILL_S:g} s", transient=True) from error
        return jobs_pb2.OutputFile(name=left.name, checksum=checksum, size=size, truncated=left.truncated)


def _small(left: LeftFile, most: int) -> jobs_pb2.OutputFile | None:
    """Return a file with its content, None = it has more bytes than may travel so."""
    with open_regular(left.path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        return None
    checksum = hashlib.sha256(content).hexdigest()
    return jobs_pb2.OutputFile(
        name=left.name, checksum=checksum, size=len(content), content=content, truncated=left.truncated
    )
