"""The job router's link to its server over gRPC: calls, messages, and transfers of files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import grpc.aio
import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage.job_description import InputFile
from pilotage.jobs.files import digest_of, open_regular
from pilotage.rpc.wire import time_to_wire, value_to_wire
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2, route_service_pb2, route_service_pb2_grpc
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob, UnwantedRoutedJob
from pilotage.values.wire.leadership import leadership_to_wire
from pilotage.values.wire.routing import (
    left_out_to_wire,
    new_routed_job_to_wire,
    outline_to_wire,
    routable_job_from_wire,
    unwanted_from_wire,
)
from pilotage_agents.router.core.model import CollectedFile, ListedRoutedJob, RoutedJobOutcome, RoutedJobReport
from pilotage_agents.router.core.report import without_output
from pilotage_agents.router.ports import JobMoved, NotRouted, Routed, RoutedJobReportAnswer, RouterFeedPage
from pilotage_agents.router.tasks import progress_timeout, report_progress

log = structlog.get_logger()

_STATE = "JOB_STATE_"


def state_name(number: jobs_pb2.JobState.ValueType) -> str:
    """Return the name of a state in the protocol, without its prefix."""
    return jobs_pb2.JobState.Name(number).removeprefix(_STATE)


def routable_job(message: route_service_pb2.RoutableJob) -> RoutableJob | None:
    """Return the job, None = its ad or description cannot be read."""
    try:
        return routable_job_from_wire(message)
    except InvalidInputError as error:
        log.warning("job cannot be read", job_id=message.job_id, reason=str(error))
        return None


def key_of(routed: route_service_pb2.UnwantedCopy | route_service_pb2.JobCopy) -> route_service_pb2.CopyKey:
    """Return the key of a routed job in the protocol."""
    return route_service_pb2.CopyKey(job_id=routed.job_id, attempt=routed.attempt)


def listed_routed_job(routed: route_service_pb2.JobCopy) -> ListedRoutedJob:
    """Return a routed job of the server's list."""
    is_running = routed.state == jobs_pb2.JOB_STATE_RUNNING
    return ListedRoutedJob(
        routed.job_id,
        routed.attempt,
        routed.route,
        routed.target,
        routed.reference,
        routed.unwanted,
        is_running=is_running,
    )


def report_to_wire(report: RoutedJobReport, files: Sequence[jobs_pb2.OutputFile]) -> route_service_pb2.CopyReport:
    """Return the message of a report, with the output files."""
    return route_service_pb2.CopyReport(
        job_id=report.job_id,
        attempt=report.attempt,
        reference=report.reference,
        node=report.node,
        report=_job_report(report, files) if report.state else None,
        held=report.held,
        attributes={name: value_to_wire(value) for name, value in report.attributes.items()},
    )


def _job_report(report: RoutedJobReport, files: Sequence[jobs_pb2.OutputFile]) -> jobs_pb2.JobReport:
    message = jobs_pb2.JobReport(
        job_id=report.job_id,
        attempt=report.attempt,
        state=jobs_pb2.JobState.Value(f"{_STATE}{report.state}"),
        started=time_to_wire(report.started),
    )
    if report.plugged is not None:
        status = report.plugged
        failed = jobs_pb2.JobReport(plugged=True, exit_code=status.exit_code, cpu_s=status.cpu_s, wall_s=status.wall_s)
        message.MergeFrom(failed)
    if report.outcome is not None:
        message.MergeFrom(_end(report.outcome))
        message.output_files.extend(files)
    return message


def _end(outcome: RoutedJobOutcome) -> jobs_pb2.JobReport:
    status = outcome.status
    return jobs_pb2.JobReport(
        outcome=jobs_pb2.Outcome.Value(f"OUTCOME_{outcome.outcome}"),
        exit_code=status.exit_code,
        signal=status.signal,
        reason=outcome.reason,
        started=time_to_wire(status.started),
        ended=time_to_wire(status.ended),
        cpu_s=status.cpu_s,
        wall_s=status.wall_s,
    )


_PIECE_BYTES = 512 << 10


async def upload_requests(path: Path, checksum: str, size: int) -> AsyncIterator[job_service_pb2.UploadFileRequest]:
    """Yield the requests that upload the first `size` bytes of a file with this checksum."""
    yield job_service_pb2.UploadFileRequest(checksum=checksum, size=size)
    file = await asyncio.to_thread(open_regular, path)
    try:
        while size > 0 and (content := await asyncio.to_thread(file.read, min(_PIECE_BYTES, size))):
            yield job_service_pb2.UploadFileRequest(content=content)
            size -= len(content)
            report_progress()
    finally:
        file.close()


async def write_download(
    path: Path, checksum: str, arriving: AsyncIterable[job_service_pb2.DownloadFileResponse]
) -> None:
    """Write a download to a file; if it is not as announced, removes it and raises WorldError."""
    digest = hashlib.sha256()
    try:
        file: BinaryIO = await asyncio.to_thread(path.open, "wb")
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error
    try:
        async for piece in arriving:
            digest.update(piece.content)
            await asyncio.to_thread(file.write, piece.content)
            report_progress()
        await asyncio.to_thread(file.close)
        if digest.hexdigest() != checksum:
            raise WorldError(f"{path.name} did not arrive as it was stored", transient=True)
    except BaseException as error:
        _thrown_away(file, path)
        if isinstance(error, OSError):
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
        raise


def _thrown_away(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)


MAX_EVENTS = 10_000
"""So many events come in a page, and a few more."""

_INLINE_BYTES = 64 << 10
_INLINE_IN_ALL = 8 << 20
_TRANSFER_S = 86_400.0
"""No file takes longer on its way; one that stands still is given up long before."""

_STILL_S = 120.0


class RouterServerLink:
    """Calls a server over gRPC as the leader."""

    def __init__(self, channel: grpc.aio.Channel, leadership: Leadership, *, most_events: int = MAX_EVENTS) -> None:
        self._router = leadership.agent
        self._leadership = leadership_to_wire(leadership)
        self._most_events = most_events
        self._jobs = job_service_pb2_grpc.JobServiceStub(channel)
        self._routes = route_service_pb2_grpc.RouteServiceStub(channel)

    async def next_events(self, after: int) -> RouterFeedPage:
        """Return the present events of the feed after a position (0 = the oldest kept), or the first part of them."""
        request = job_service_pb2.WatchEventsRequest(after_position=after, until_now=True)
        events: list[JobMoved] = []
        call = self._jobs.WatchEvents(request)
        async for message in call:
            events += [JobMoved(each.job_id, state_name(each.to), each.cause) for each in message.events]
            after = message.position
            if len(events) >= self._most_events:
                call.cancel()
                break
        return RouterFeedPage(tuple(events), after)

    async def load_jobs(self, job_ids: Sequence[int]) -> tuple[RoutableJob, ...]:
        """Return the existing ones of at most 1,000 jobs."""
        found: list[RoutableJob] = []
        while job_ids:  # each answer holds at least one job
            answer = await self._routes.LookAtJobs(route_service_pb2.LookAtJobsRequest(job_ids=job_ids))
            found += [job for message in answer.jobs if (job := routable_job(message)) is not None]
            job_ids = answer.unseen
        return tuple(found)

    async def route(self, request: str, jobs: Sequence[NewRoutedJob]) -> tuple[Routed | NotRouted, ...]:
        """Request at most 1,000 jobs for routes; returns one answer each, in order."""
        query = route_service_pb2.RouteJobsRequest(
            request_id=request, turn=self._leadership, copies=map(new_routed_job_to_wire, jobs)
        )
        answer = await self._routes.RouteJobs(query)
        return tuple(
            Routed(each.job_id, each.attempt) if each.attempt else NotRouted(each.job_id, each.refusal)
            for each in answer.jobs
        )

    async def report(self, request: str, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        """Report at most 1,000 routed jobs, with their files; none = only list those that are no longer wanted."""
        if not reports:
            return RoutedJobReportAnswer({}, await self._unwanted(request))
        budget = _INLINE_IN_ALL
        messages = []
        for report in reports:
            try:
                files, budget = await self._files(report, budget)
                messages.append(report_to_wire(report, files))
            except OSError as error:
                log.warning("output of a routed job cannot be read", job_id=report.job_id, reason=str(error))
                messages.append(report_to_wire(without_output(report, str(error)), ()))
        answer = await self._routes.ReportCopies(
            route_service_pb2.ReportCopiesRequest(request_id=request, turn=self._leadership, copies=messages)
        )
        refused = {(each.job_id, each.attempt): each.refusal for each in answer.results if not each.accepted}
        malformed = {(each.job_id, each.attempt): each.fault for each in answer.malformed}
        return RoutedJobReportAnswer(refused, tuple(map(unwanted_from_wire, answer.unwanted)), malformed)

    async def _unwanted(self, request: str) -> tuple[UnwantedRoutedJob, ...]:
        """Return all routed jobs that are no longer wanted; without reports all pages may share one request id."""
        query = route_service_pb2.ReportCopiesRequest(request_id=request, turn=self._leadership)
        unwanted: list[UnwantedRoutedJob] = []
        while True:
            answer = await self._routes.ReportCopies(query)
            unwanted += map(unwanted_from_wire, answer.unwanted)
            if not answer.more_unwanted:
                return tuple(unwanted)
            query.unwanted_after.CopyFrom(key_of(answer.unwanted[-1]))

    async def routed_jobs(self) -> tuple[ListedRoutedJob, ...]:
        """Return the routed jobs of this router that have not ended."""
        query = route_service_pb2.ListCopiesRequest(router=self._router)
        jobs: list[ListedRoutedJob] = []
        while True:
            answer = await self._routes.ListCopies(query)
            jobs += map(listed_routed_job, answer.copies)
            if not answer.more:
                return tuple(jobs)
            query.after.CopyFrom(key_of(answer.copies[-1]))

    async def publish_routes(self, table: PublishedRoutes) -> None:
        """Replace the routes that the server shows to its users."""
        request = route_service_pb2.PutRoutesRequest(
            turn=self._leadership,
            routes=map(outline_to_wire, table.routes),
            constraint=table.constraint,
            max_jobs=table.max_jobs,
            left_out=map(left_out_to_wire, table.left_out),
        )
        await self._routes.PutRoutes(request)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        """Write the complete, checked file to `to`; raises a PilotageError."""
        checksum = file.checksum or ""
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum, turn=self._leadership)
        await write_download(to, checksum, self._jobs.DownloadFile(request, timeout=_TRANSFER_S))

    async def upload(self, files: Sequence[CollectedFile]) -> None:
        """Upload the files that are too large for a report; raises a PilotageError."""
        for collected in files:
            with suppress(OSError):  # `report` handles a file that cannot be read
                if await asyncio.to_thread(_inline_file, collected, _INLINE_BYTES) is None:
                    await self._upload_file(collected)

    async def _files(self, report: RoutedJobReport, budget: int) -> tuple[list[jobs_pb2.OutputFile], int]:
        """Return the output files of a report, uploaded if large, and the bytes left for content in the call.

        Raises OSError for a file that cannot be read.
        """
        files = []
        for collected in report.outcome.files if report.outcome else ():
            try:
                file = await asyncio.to_thread(_inline_file, collected, min(budget, _INLINE_BYTES))
                if file is None:
                    file = await self._upload_file(collected)
            except OSError as error:
                raise OSError(f"{collected.name}: {error.strerror or error}") from error
            budget -= len(file.content)
            files.append(file)
        return files, budget

    async def _upload_file(self, collected: CollectedFile) -> jobs_pb2.OutputFile:
        path = Path(collected.path)
        size = (await asyncio.to_thread(path.stat)).st_size
        checksum, size = await asyncio.to_thread(digest_of, path, size)
        query = job_service_pb2.FindMissingFilesRequest(checksums=[checksum])
        if (await self._jobs.FindMissingFiles(query)).missing:
            try:
                async with progress_timeout(_STILL_S):
                    await self._jobs.UploadFile(upload_requests(path, checksum, size), timeout=_TRANSFER_S)
            except TimeoutError as error:
                raise WorldError(f"{collected.name}: no progress for {_STILL_S:g} s", transient=True) from error
        return jobs_pb2.OutputFile(name=collected.name, checksum=checksum, size=size, truncated=collected.truncated)


def _inline_file(collected: CollectedFile, most: int) -> jobs_pb2.OutputFile | None:
    """Return a file with its content, None = it is longer than `most` bytes."""
    with open_regular(Path(collected.path)) as file:
        content = file.read(most + 1)
    if len(content) > most:
        return None
    checksum = hashlib.sha256(content).hexdigest()
    return jobs_pb2.OutputFile(
        name=collected.name, checksum=checksum, size=len(content), content=content, truncated=collected.truncated
    )
