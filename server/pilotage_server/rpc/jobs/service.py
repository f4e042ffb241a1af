"""JobService: jobs, their files and their events.

Files stream through worker threads, never through a transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

from pilotage.classads.text import ad_text
from pilotage.clock import BootClock
from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.wire import description_to_wire
from pilotage.telemetry import current_trace, new_trace, trace_bound
from pilotage.tracing.recording import span
from pilotage.tracing.spans import SpanKind
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2
from pilotage.values.dependencies import Dependency
from pilotage.values.jobs import SubmittedJobs
from pilotage.values.wire.dependencies import dependencies_from_wire
from pilotage.values.wire.fields import Fields, all_from_wire, job_id_from_wire, reason_from_wire
from pilotage.values.wire.jobs import change_result_to_wire, submitted_jobs_to_wire
from pilotage.values.wire.leadership import leadership_from_wire
from pilotage.values.wire.notifications import submitted_subscriptions_from_wire
from pilotage_server.core.identity import Holder, Identity, holder_of
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import DescriptionGroup
from pilotage_server.core.jobs.files import MAX_INLINE_BYTES, OutputFile
from pilotage_server.core.jobs.record import FeedPage
from pilotage_server.core.jobs.states import FINAL
from pilotage_server.operations.dry_run import try_submission
from pilotage_server.operations.explain import explain_job
from pilotage_server.operations.jobs.ads import list_ads
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.clusters import find_jobs, list_clusters
from pilotage_server.operations.jobs.conditions import query_of, search_jobs
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.files import (
    check_download,
    check_stored,
    find_missing,
    list_outputs,
    record_upload,
)
from pilotage_server.operations.jobs.new_jobs import PART_JOBS, PartStorage
from pilotage_server.operations.jobs.queries import (
    details_of,
    feed_owner,
    get_ad,
    get_description,
    get_events,
    get_jobs,
    list_attempts,
    list_jobs,
    read_feed,
)
from pilotage_server.operations.jobs.quotas import JobQuotas, check_upload
from pilotage_server.operations.jobs.submission import submit_jobs, subscribe_to_new_jobs
from pilotage_server.rpc.framework.calls import caller, caller_token, wait_time_s
from pilotage_server.rpc.framework.scopes import Permission, require
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_count, job_ids_from_wire
from pilotage_server.rpc.jobs.event_feed import EndFollower, EventFeed, Follower
from pilotage_server.rpc.jobs.output import OutputCalls
from pilotage_server.rpc.jobs.wire import (
    ad_filter_from_wire,
    attempt_to_wire,
    change_from_wire,
    checksum_from_wire,
    checksums_from_wire,
    cluster_filter_from_wire,
    cluster_to_wire,
    condition_from_wire,
    dry_run_to_wire,
    event_to_wire,
    explanation_to_wire,
    job_to_wire,
    jobs_found_to_wire,
    jobs_to_wire,
    listing_from_wire,
    output_files_to_wire,
    runs_from_wire,
    selected_to_wire,
    selections_from_wire,
    submission_from_wire,
    submitted_from_wire,
    workflow_from_wire,
)
from pilotage_server.rpc.jobs.workflows import WorkflowCalls
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.disk import DiskSpace

_SERVICE = job_service_pb2.DESCRIPTOR.services_by_name["JobService"].full_name

MAX_PIECE_BYTES = 1024 * 1024
"""Limit of the bytes in one message of an upload."""


class FileCalls:
    """The methods for sandboxes."""

    def __init__(self, transactions: Transactions, store: FileStore, disk: DiskSpace) -> None:
        self._file_transactions = transactions
        self._store = store
        self._disk = disk
        self._announced_bytes: Counter[Holder] = Counter()

    async def FindMissingFiles(
        self, request: job_service_pb2.FindMissingFilesRequest, context: Any
    ) -> job_service_pb2.FindMissingFilesResponse:
        identity = caller()
        checksums = checksums_from_wire(request.checksums)
        missing = await self._file_transactions.write(
            lambda transaction, _: find_missing(transaction, identity, checksums)
        )
        return job_service_pb2.FindMissingFilesResponse(missing=missing)

    async def UploadFile(
        self, requests: AsyncIterator[job_service_pb2.UploadFileRequest], context: Any
    ) -> job_service_pb2.UploadFileResponse:
        identity = caller()
        first = await anext(aiter(requests), None)
        if first is None:
            raise InvalidInputError(Violation("", "the stream is empty; its first message has checksum and size"))
        fields = Fields(first)
        checksum, size = fields("checksum", checksum_from_wire), fields.count("size")
        fields.done()
        self._store.check_size(size)  # first: an absurd size must not count as announced
        holder = holder_of(identity)
        self._announced_bytes[holder] += size  # at once: others may announce theirs while this one is checked
        try:
            await self._check_upload(identity, holder)
            await self._receive(checksum, size, first.content, requests)
        finally:
            self._announced_bytes -= Counter({holder: size})
        await asyncio.to_thread(check_stored, self._store, checksum)
        await self._file_transactions.write(lambda transaction, _: record_upload(transaction, identity, checksum, size))
        return job_service_pb2.UploadFileResponse(checksum=checksum)

    async def _check_upload(self, identity: Identity, holder: Holder) -> None:
        """Raise unless there is room for the announced uploads: on the disk, and in the quotas."""
        await asyncio.to_thread(self._disk.check, self._announced_bytes.total())
        await self._file_transactions.read(
            lambda transaction, state: check_upload(
                transaction, identity, self._announced_bytes[holder], state.rules.jobs
            )
        )

    async def _receive(
        self, checksum: str, size: int, content: bytes, rest: AsyncIterator[job_service_pb2.UploadFileRequest]
    ) -> None:
        upload = await asyncio.to_thread(self._store.begin, checksum, size)
        try:
            await asyncio.to_thread(upload.append, _piece(content))
            async for request in rest:
                await asyncio.to_thread(upload.append, _piece(request.content))
            await asyncio.to_thread(upload.finish)
        except BaseException:  # also a cancelled call leaves no partial file
            await asyncio.to_thread(upload.abort)
            raise

    async def DownloadFile(
        self, request: job_service_pb2.DownloadFileRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.DownloadFileResponse]:
        identity = caller()
        fields = Fields(request)
        job_id, checksum = fields("job_id", job_id_from_wire), fields("checksum", checksum_from_wire)
        leadership = fields.if_set("turn", leadership_from_wire)
        fields.done()
        await self._file_transactions.read(
            lambda transaction, _: check_download(transaction, identity, job_id, checksum, leadership)
        )
        pieces = await asyncio.to_thread(self._store.read, checksum)
        while (piece := await asyncio.to_thread(_next_piece, pieces)) is not None:
            yield job_service_pb2.DownloadFileResponse(content=piece)

    async def ListOutputFiles(
        self, request: job_service_pb2.ListOutputFilesRequest, context: Any
    ) -> job_service_pb2.ListOutputFilesResponse:
        identity = caller()
        fields = Fields(request)
        job_id, attempt = fields("job_id", job_id_from_wire), fields.count("attempt")
        fields.done()
        outputs = await self._file_transactions.read(
            lambda transaction, _: list_outputs(transaction, identity, job_id, attempt)
        )
        return job_service_pb2.ListOutputFilesResponse(
            files=output_files_to_wire(outputs.files), attempt=outputs.attempt, partial=outputs.partial
        )

    async def ReadOutputFiles(
        self, request: job_service_pb2.ReadOutputFilesRequest, context: Any
    ) -> job_service_pb2.ReadOutputFilesResponse:
        identity, names = caller(), frozenset(request.names)
        job_ids = job_ids_from_wire(request.job_ids)[:_JOBS_A_READ]
        fields = Fields(request)
        largest_bytes = fields("largest_bytes", _largest_inline)
        fields.done()
        found = await self._file_transactions.read(
            lambda transaction, _: [list_outputs(transaction, identity, job_id) for job_id in job_ids]
        )
        answer = job_service_pb2.ReadOutputFilesResponse()
        for job_id, outputs in zip(job_ids, found, strict=True):
            files = [file for file in outputs.files if not names or file.name in names]
            messages = await asyncio.to_thread(self._with_contents, files, largest_bytes)
            answer.outputs.add(job_id=job_id, attempt=outputs.attempt, files=messages, partial=outputs.partial)
            if answer.ByteSize() > _MOST_INLINE_BYTES:
                break
        return answer

    def _with_contents(self, files: Sequence[OutputFile], largest_bytes: int) -> list[jobs_pb2.OutputFile]:
        """Return the messages of files, as many small ones with their content as fit in one answer."""
        messages = output_files_to_wire(files)
        room = _MOST_INLINE_BYTES
        for message in messages:
            if message.size <= min(largest_bytes, room):
                message.content = b"".join(self._store.read(message.checksum))
                room -= message.size
        return messages


_JOBS_A_READ = 100
"""Jobs whose output files one answer has at most."""

_MOST_INLINE_BYTES = 1 << 20
"""The most contents of one job, and the size of an answer above which no job is added: 2 MiB of the allowed 4."""
_LARGEST_INLINE_BYTES = 1 << 20


def _largest_inline(size: int) -> int:
    if not 0 <= size <= _LARGEST_INLINE_BYTES:
        raise InvalidInputError(Violation("", f"{size} bytes are not between 0 and {_LARGEST_INLINE_BYTES}"))
    return size or MAX_INLINE_BYTES


def _piece(content: bytes) -> bytes:
    if len(content) > MAX_PIECE_BYTES:
        why = f"a piece of {len(content)} bytes is larger than {MAX_PIECE_BYTES}"
        raise InvalidInputError(Violation("content", why))
    return content


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)  # StopIteration must not cross from a thread into a coroutine


KEEPALIVE_S = 30.0
"""Interval of empty messages in a feed without events."""


class EventCalls:
    """The methods for events of one job, and for the feed of all events that the caller may see."""

    def __init__(self, transactions: Transactions, feed: EventFeed) -> None:
        self._event_transactions = transactions
        self._event_feed = feed

    async def GetJobEvents(
        self, request: job_service_pb2.GetJobEventsRequest, context: Any
    ) -> job_service_pb2.GetJobEventsResponse:
        identity = caller()
        fields = Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        fields.done()
        events = await self._event_transactions.read(lambda transaction, _: get_events(transaction, identity, job_id))
        return job_service_pb2.GetJobEventsResponse(events=[event_to_wire(event) for event in events])

    async def WatchEvents(
        self, request: job_service_pb2.WatchEventsRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchEventsResponse]:
        identity = caller()
        position, job_ids, runs = _feed_request(request)
        follower = Follower(feed_owner(identity))
        is_due = True  # the first message has the position, even without events
        async with self._event_feed.subscribed(follower):
            while True:
                page = await self._page(identity, position, job_ids, runs)
                if is_due or page.events:
                    events = [event_to_wire(event) for event in page.events]
                    yield job_service_pb2.WatchEventsResponse(events=events, position=page.position)
                position, is_due = page.position, False
                if page.at_end:
                    wait_s = wait_time_s(context, KEEPALIVE_S, KEEPALIVE_S)
                    if request.until_now or wait_s == 0 or not self._event_feed.is_open:
                        return
                    is_due = not await follower.wait(wait_s)

    async def _page(
        self, identity: Identity, position: int, job_ids: tuple[int, ...], runs: tuple[range, ...]
    ) -> FeedPage:
        return await self._event_transactions.read(
            lambda transaction, _: read_feed(transaction, identity, position, job_ids, runs=runs)
        )


def _feed_request(request: job_service_pb2.WatchEventsRequest) -> tuple[int, tuple[int, ...], tuple[range, ...]]:
    """Return the position, the ids and the runs of ids."""
    fields = Fields(request)
    runs = fields("runs", runs_from_wire)
    fields("job_ids", check_count)
    job_ids = fields("job_ids", lambda ids: all_from_wire(ids, job_id_from_wire))
    position = fields.count("after_position")
    fields.done()
    return position, job_ids, runs


def _jobs_from_wire(
    request: job_service_pb2.SubmitJobsRequest,
) -> tuple[tuple[DescriptionGroup, ...], tuple[Dependency, ...]]:
    """Return the descriptions and the dependencies of a submission."""
    descriptions = submission_from_wire(request.descriptions)
    return descriptions, dependencies_from_wire(request.dependencies, len(request.descriptions))


async def store_parts(transactions: Transactions, submission: int) -> None:
    """Store the parts that are left of a submission, given by the id of its first job."""
    batch = PartStorage(transactions.state)
    while await transactions.write_batch(batch, submission):
        pass


class JobServicer(FileCalls, EventCalls, OutputCalls, WorkflowCalls, job_service_pb2_grpc.JobServiceServicer):
    """Submits, shows and changes jobs."""

    def __init__(
        self,
        transactions: Transactions,
        store: FileStore,
        feed: EventFeed,
        boot_clock: BootClock,
        longest_wait_s: float,
        disk: DiskSpace,
    ) -> None:
        FileCalls.__init__(self, transactions, store, disk)
        EventCalls.__init__(self, transactions, feed)
        OutputCalls.__init__(self, transactions, store, boot_clock, lambda: feed.is_open)
        WorkflowCalls.__init__(self, transactions)
        self._transactions = transactions
        self._feed = feed
        self._boot_clock = boot_clock
        self._longest_wait_s = longest_wait_s
        self._live_jobs = JobQuotas(transactions.state.rules.jobs)

    async def SubmitJobs(
        self, request: job_service_pb2.SubmitJobsRequest, context: Any
    ) -> job_service_pb2.SubmitJobsResponse:
        names = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": "SubmitJobs", "pilotage.vo": caller().vo}
        with span(f"{_SERVICE}/SubmitJobs", SpanKind.SERVER, names) as attributes:
            response = await self._submit(request)
            attributes["pilotage.jobs"] = len(response.job_ids)
            return response

    async def _submit(self, request: job_service_pb2.SubmitJobsRequest) -> job_service_pb2.SubmitJobsResponse:
        identity, trace = caller(), current_trace() or new_trace()
        descriptions, dependencies = await asyncio.to_thread(_jobs_from_wire, request)  # may be thousands
        subscriptions = submitted_subscriptions_from_wire(request.subscriptions, len(request.descriptions))

        workflow = workflow_from_wire(request)
        jobs = sum(group.job_count for group in descriptions)
        if self._live_jobs.is_stale(identity, jobs, self._boot_clock()):
            await self._transactions.read(
                lambda transaction, _: self._live_jobs.count(transaction, identity.vo, self._boot_clock())
            )

        def try_it(transaction: Any, state: Any) -> job_service_pb2.SubmitJobsResponse:
            self._disk.check()
            self._live_jobs.check(identity, jobs)
            tried = try_submission(transaction, state, identity, descriptions, request.group, dependencies=dependencies)
            checked = SubmittedJobs((), tried.warnings)
            if subscriptions:
                checked = subscribe_to_new_jobs(transaction, state, identity, descriptions, subscriptions, checked)
            return dry_run_to_wire(tried, checked.warnings, self._live_jobs.of(identity))

        if request.validate_only:
            return await self._transactions.read(try_it)

        def submit(transaction: Any, state: Any) -> job_service_pb2.SubmitJobsResponse:
            self._disk.check()
            self._live_jobs.check(identity, jobs)
            with trace_bound(trace):
                done = submit_jobs(
                    transaction,
                    state,
                    identity,
                    descriptions,
                    request.group,
                    dependencies=dependencies,
                    workflow=workflow,
                )
            if subscriptions:
                done = subscribe_to_new_jobs(transaction, state, identity, descriptions, subscriptions, done)
            transaction.after_commit(partial(self._live_jobs.add, identity, jobs))
            return submitted_jobs_to_wire(done)

        response = await self._transactions.once(
            identity, "SubmitJobs", request, job_service_pb2.SubmitJobsResponse, submit
        )
        if len(response.job_ids) > PART_JOBS:  # also for a repeated call, while the first one still stores parts
            await store_parts(self._transactions, response.job_ids[0])
        return response

    async def GetJobs(self, request: job_service_pb2.GetJobsRequest, context: Any) -> job_service_pb2.GetJobsResponse:
        identity, job_ids = caller(), job_ids_from_wire(request.job_ids)

        def show(transaction: Any, state: Any) -> job_service_pb2.GetJobsResponse:
            jobs = get_jobs(transaction, identity, job_ids)
            return job_service_pb2.GetJobsResponse(jobs=jobs_to_wire(jobs, details_of(transaction, state, jobs)))

        return await self._transactions.read(show)

    async def ListAttempts(
        self, request: job_service_pb2.ListAttemptsRequest, context: Any
    ) -> job_service_pb2.ListAttemptsResponse:
        identity, job_ids = caller(), job_ids_from_wire(request.job_ids)

        def show(transaction: Any, _: Any) -> job_service_pb2.ListAttemptsResponse:
            attempts = list_attempts(transaction, identity, job_ids)
            return job_service_pb2.ListAttemptsResponse(attempts=map(attempt_to_wire, attempts))

        return await self._transactions.read(show)

    async def ListJobs(
        self, request: job_service_pb2.ListJobsRequest, context: Any
    ) -> job_service_pb2.ListJobsResponse:
        identity, wanted = caller(), listing_from_wire(request)

        def page(transaction: Any, state: Any) -> job_service_pb2.ListJobsResponse:
            found = list_jobs(
                transaction,
                state,
                identity,
                wanted.condition,
                wanted.page_size,
                wanted.page_token,
                newest_first=wanted.newest_first,
                copies=wanted.copies,
            )
            jobs = jobs_to_wire(found.jobs, details_of(transaction, state, found.jobs))
            return job_service_pb2.ListJobsResponse(jobs=jobs, next_page_token=found.next_page_token)

        return await self._transactions.read(page)

    async def FindJobs(
        self, request: job_service_pb2.FindJobsRequest, context: Any
    ) -> job_service_pb2.FindJobsResponse:
        identity = caller()
        selections, states = selections_from_wire(request)

        def find(transaction: Any, _: Any) -> job_service_pb2.FindJobsResponse:
            found = find_jobs(transaction, identity, selections, states)
            return job_service_pb2.FindJobsResponse(selected=map(selected_to_wire, found))

        return await self._transactions.read(find)

    async def SearchJobs(
        self, request: job_service_pb2.SearchJobsRequest, context: Any
    ) -> job_service_pb2.SearchJobsResponse:
        identity, fields = caller(), Fields(request)
        condition = fields("condition", condition_from_wire)
        page_token = fields.text("page_token")
        fields.done()
        return await self._transactions.read(
            lambda transaction, state: jobs_found_to_wire(
                search_jobs(transaction, state, identity, condition, page_token)
            )
        )

    async def ListClusters(
        self, request: job_service_pb2.ListClustersRequest, context: Any
    ) -> job_service_pb2.ListClustersResponse:
        identity = caller()
        wanted, page_size = cluster_filter_from_wire(request)

        def page(transaction: Any, state: Any) -> job_service_pb2.ListClustersResponse:
            found = list_clusters(transaction, state, identity, wanted, page_size, request.page_token, request.workflow)
            clusters = [cluster_to_wire(each) for each in found.clusters]
            return job_service_pb2.ListClustersResponse(clusters=clusters, next_page_token=found.next_page_token)

        return await self._transactions.read(page)

    async def GetJobDescription(
        self, request: job_service_pb2.GetJobDescriptionRequest, context: Any
    ) -> job_service_pb2.GetJobDescriptionResponse:
        identity, job_id = caller(), _job_id_of(request)
        description = await self._transactions.read(
            lambda transaction, _: get_description(transaction, identity, job_id)
        )
        return job_service_pb2.GetJobDescriptionResponse(description=description_to_wire(description))

    async def GetJobAd(
        self, request: job_service_pb2.GetJobAdRequest, context: Any
    ) -> job_service_pb2.GetJobAdResponse:
        identity, job_id = caller(), _job_id_of(request)
        ad = await self._transactions.read(lambda transaction, _: ad_text(get_ad(transaction, identity, job_id)))
        return job_service_pb2.GetJobAdResponse(ad=ad)

    async def ListJobAds(
        self, request: job_service_pb2.ListJobAdsRequest, context: Any
    ) -> job_service_pb2.ListJobAdsResponse:
        identity = caller()
        wanted, page_size = ad_filter_from_wire(request)
        page = await self._transactions.read(
            lambda transaction, state: list_ads(transaction, state, identity, wanted, page_size, request.page_token)
        )
        return job_service_pb2.ListJobAdsResponse(ads=page.ads, next_page_token=page.next_page_token)

    async def WaitForJobs(
        self, request: job_service_pb2.WaitForJobsRequest, context: Any
    ) -> job_service_pb2.WaitForJobsResponse:
        job_ids = job_ids_from_wire(request.job_ids)
        fields = Fields(request)
        fields.length("timeout_s")
        fields.done()
        until_s = self._boot_clock() + wait_time_s(context, request.timeout_s, self._longest_wait_s)
        identity = caller()
        follower = EndFollower(feed_owner(identity), job_ids)

        async with self._feed.subscribed(follower):
            while True:
                follower.reset()
                jobs = await self._transactions.read(lambda transaction, _: get_jobs(transaction, identity, job_ids))
                all_final, left_s = all(job.state in FINAL for job in jobs), until_s - self._boot_clock()
                if all_final or left_s <= 0 or not self._feed.is_open:
                    break
                follower.mark_ended(job.id for job in jobs if job.state in FINAL)
                await follower.wait(left_s)
        details = await self._transactions.read(lambda transaction, state: details_of(transaction, state, jobs))
        messages = await asyncio.to_thread(jobs_to_wire, jobs, details)
        return job_service_pb2.WaitForJobsResponse(jobs=messages, all_final=all_final)

    async def ChangeJobs(
        self, request: job_service_pb2.ChangeJobsRequest, context: Any
    ) -> job_service_pb2.ChangeJobsResponse:
        identity = caller()
        job_ids = job_ids_from_wire(request.job_ids)
        fields = Fields(request)
        change, reason = fields("change", change_from_wire), fields("reason", reason_from_wire)
        condition = fields.if_set("only", condition_from_wire)
        fields.done()
        permission = Permission.CANCEL if change is JobChange.REMOVE else Permission.MODIFY
        require({permission}, caller_token().permissions, f"to {change} jobs")

        def make(transaction: Any, state: Any) -> job_service_pb2.ChangeJobsResponse:
            only = None if condition is None else query_of(transaction, state, identity, condition)
            results = change_jobs(transaction, state, identity, job_ids, change, reason, only)
            return job_service_pb2.ChangeJobsResponse(results=[change_result_to_wire(each) for each in results])

        return await self._transactions.once(identity, "ChangeJobs", request, job_service_pb2.ChangeJobsResponse, make)

    async def EditJob(self, request: job_service_pb2.EditJobRequest, context: Any) -> job_service_pb2.EditJobResponse:
        identity = caller()
        fields = Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        description = fields("description", submitted_from_wire)
        fields.done()

        def edit(transaction: Any, state: Any) -> job_service_pb2.EditJobResponse:
            edited = edit_job(transaction, state, identity, job_id, description)
            return job_service_pb2.EditJobResponse(job=job_to_wire(edited.job), warnings=edited.warnings)

        return await self._transactions.once(identity, "EditJob", request, job_service_pb2.EditJobResponse, edit)

    async def ExplainJob(
        self, request: job_service_pb2.ExplainJobRequest, context: Any
    ) -> job_service_pb2.ExplainJobResponse:
        identity, job_id = caller(), _job_id_of(request)
        return await self._transactions.read(
            lambda transaction, state: explanation_to_wire(explain_job(transaction, state, identity, job_id))
        )


def _job_id_of(request: Any) -> int:
    fields = Fields(request)
    job_id = fields("job_id", job_id_from_wire)
    fields.done()
    return job_id
