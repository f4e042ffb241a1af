"""JobService: the users' door, to jobs; files and events have their own halves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pilotage.ad_text import ad_text
from pilotage.clock import BootClock
from pilotage.description_wire import description_to_wire
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import FINAL
from pilotage_server.operations.change_jobs import change_jobs
from pilotage_server.operations.edit_job import edit_job
from pilotage_server.operations.explain import explain_job
from pilotage_server.operations.query_jobs import get_ad, get_description, get_jobs, list_jobs
from pilotage_server.operations.submit import submit_jobs
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_jobs import (
    change_from_wire,
    change_result_to_wire,
    explanation_to_wire,
    filter_from_wire,
    job_to_wire,
    submission_from_wire,
    submitted_from_wire,
)
from pilotage_server.rpc.convert_values import Fields, job_id_from_wire, job_ids_from_wire, reason_from_wire
from pilotage_server.rpc.deadlines import patience_s
from pilotage_server.rpc.event_feed import EndFollower, EventFeed
from pilotage_server.rpc.event_servicer import EventCalls
from pilotage_server.rpc.file_servicer import FileCalls
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.file_store import FileStore


class JobServicer(FileCalls, EventCalls, job_service_pb2_grpc.JobServiceServicer):
    """Takes jobs and answers for them."""

    def __init__(
        self,
        transactions: Transactions,
        store: FileStore,
        feed: EventFeed,
        boot_clock: BootClock,
        longest_wait_s: float,
    ) -> None:
        FileCalls.__init__(self, transactions, store)
        EventCalls.__init__(self, transactions, feed)
        self._transactions = transactions
        self._feed = feed
        self._boot_clock = boot_clock
        self._longest_wait_s = longest_wait_s

    async def SubmitJobs(
        self, request: job_service_pb2.SubmitJobsRequest, context: Any
    ) -> job_service_pb2.SubmitJobsResponse:
        identity = caller()
        descriptions = await asyncio.to_thread(submission_from_wire, request.descriptions)  # may be thousands

        def submit(unit: Any, world: Any) -> job_service_pb2.SubmitJobsResponse:
            done = submit_jobs(unit, world, identity, descriptions, request.group, validate_only=request.validate_only)
            return job_service_pb2.SubmitJobsResponse(job_ids=done.job_ids, warnings=done.warnings)

        if request.validate_only:
            return await self._transactions.read(submit)
        return await self._transactions.once(
            identity, "SubmitJobs", request, job_service_pb2.SubmitJobsResponse, submit
        )

    async def GetJobs(self, request: job_service_pb2.GetJobsRequest, context: Any) -> job_service_pb2.GetJobsResponse:
        identity, job_ids = caller(), job_ids_from_wire(request.job_ids)

        def show(unit: Any, _: Any) -> job_service_pb2.GetJobsResponse:
            return job_service_pb2.GetJobsResponse(jobs=map(job_to_wire, get_jobs(unit, identity, job_ids)))

        return await self._transactions.read(show)

    async def ListJobs(
        self, request: job_service_pb2.ListJobsRequest, context: Any
    ) -> job_service_pb2.ListJobsResponse:
        identity = caller()
        wanted, page_size = filter_from_wire(request)

        def page(unit: Any, _: Any) -> job_service_pb2.ListJobsResponse:
            found = list_jobs(unit, identity, wanted, page_size, request.page_token)
            jobs = [job_to_wire(job) for job in found.jobs]
            return job_service_pb2.ListJobsResponse(jobs=jobs, next_page_token=found.next_page_token)

        return await self._transactions.read(page)

    async def GetJobDescription(
        self, request: job_service_pb2.GetJobDescriptionRequest, context: Any
    ) -> job_service_pb2.GetJobDescriptionResponse:
        identity, job_id = caller(), _job_id_of(request)
        description = await self._transactions.read(lambda unit, _: get_description(unit, identity, job_id))
        return job_service_pb2.GetJobDescriptionResponse(description=description_to_wire(description))

    async def GetJobAd(
        self, request: job_service_pb2.GetJobAdRequest, context: Any
    ) -> job_service_pb2.GetJobAdResponse:
        identity, job_id = caller(), _job_id_of(request)
        ad = await self._transactions.read(lambda unit, _: ad_text(get_ad(unit, identity, job_id)))
        return job_service_pb2.GetJobAdResponse(ad=ad)

    async def WaitForJobs(
        self, request: job_service_pb2.WaitForJobsRequest, context: Any
    ) -> job_service_pb2.WaitForJobsResponse:
        job_ids = job_ids_from_wire(request.job_ids)
        fields = Fields(request)
        fields.length("timeout_s")
        fields.done()
        until_s = self._boot_clock() + patience_s(context, request.timeout_s, self._longest_wait_s)
        identity, follower = caller(), EndFollower(job_ids)
        with self._feed.followed_by(follower):
            while True:
                follower.begin()
                jobs = await self._transactions.read(lambda unit, _: get_jobs(unit, identity, job_ids))
                all_final, left_s = _all_final(jobs), until_s - self._boot_clock()
                if all_final or left_s <= 0 or not self._feed.is_open:
                    break
                follower.have_ended(job.id for job in jobs if job.state in FINAL)
                await follower.woken(left_s)
        messages = await asyncio.to_thread(lambda: [job_to_wire(job) for job in jobs])
        return job_service_pb2.WaitForJobsResponse(jobs=messages, all_final=all_final)

    async def ChangeJobs(
        self, request: job_service_pb2.ChangeJobsRequest, context: Any
    ) -> job_service_pb2.ChangeJobsResponse:
        identity = caller()
        job_ids = job_ids_from_wire(request.job_ids)
        fields = Fields(request)
        change, reason = fields("change", change_from_wire), fields("reason", reason_from_wire)
        fields.done()

        def make(unit: Any, world: Any) -> job_service_pb2.ChangeJobsResponse:
            results = change_jobs(unit, world, identity, job_ids, change, reason)
            return job_service_pb2.ChangeJobsResponse(results=[change_result_to_wire(each) for each in results])

        return await self._transactions.once(identity, "ChangeJobs", request, job_service_pb2.ChangeJobsResponse, make)

    async def EditJob(self, request: job_service_pb2.EditJobRequest, context: Any) -> job_service_pb2.EditJobResponse:
        identity = caller()
        fields = Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        description = fields("description", submitted_from_wire)
        fields.done()

        def edit(unit: Any, world: Any) -> job_service_pb2.EditJobResponse:
            edited = edit_job(unit, world, identity, job_id, description)
            return job_service_pb2.EditJobResponse(job=job_to_wire(edited.job), warnings=edited.warnings)

        return await self._transactions.once(identity, "EditJob", request, job_service_pb2.EditJobResponse, edit)

    async def ExplainJob(
        self, request: job_service_pb2.ExplainJobRequest, context: Any
    ) -> job_service_pb2.ExplainJobResponse:
        identity, job_id = caller(), _job_id_of(request)
        return await self._transactions.read(
            lambda unit, world: explanation_to_wire(explain_job(unit, world, identity, job_id))
        )


def _job_id_of(request: Any) -> int:
    fields = Fields(request)
    job_id = fields("job_id", job_id_from_wire)
    fields.done()
    return job_id


def _all_final(jobs: Sequence[JobRecord]) -> bool:
    return all(job.state in FINAL for job in jobs)
