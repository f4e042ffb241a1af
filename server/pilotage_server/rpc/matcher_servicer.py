"""MatcherService: the pilots' door."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pilotage.clock import BootClock
from pilotage.v1 import matcher_service_pb2, matcher_service_pb2_grpc
from pilotage.wire import queue_to_wire
from pilotage_server.core.identity import Identity
from pilotage_server.core.reports import JobReport
from pilotage_server.operations.files import keep_contents
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.report_state import report_state
from pilotage_server.operations.request_jobs import WorkRequest, request_jobs
from pilotage_server.rpc.convert_matching import (
    heartbeat_answer_to_wire,
    heartbeat_from_wire,
    work_answer_to_wire,
    work_request_from_wire,
)
from pilotage_server.rpc.convert_values import queues_from_wire
from pilotage_server.rpc.deadlines import patience_s
from pilotage_server.rpc.interceptors import caller
from pilotage_server.rpc.long_polls import LongPolls, Waiter
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.file_store import FileStore


class MatcherServicer(matcher_service_pb2_grpc.MatcherServiceServicer):
    """Binds jobs to slots."""

    def __init__(
        self,
        transactions: Transactions,
        store: FileStore,
        polls: LongPolls,
        boot_clock: BootClock,
        longest_wait_s: float,
    ) -> None:
        self._transactions = transactions
        self._store = store
        self._polls = polls
        self._boot_clock = boot_clock
        self._longest_wait_s = longest_wait_s

    async def GetSubmitPoolsForQueue(
        self, request: matcher_service_pb2.GetSubmitPoolsForQueueRequest, context: Any
    ) -> matcher_service_pb2.GetSubmitPoolsForQueueResponse:
        world = self._transactions.world
        found = get_submit_pools_for_queue(world, caller(), queues_from_wire(request.queues))
        queues = [
            matcher_service_pb2.QueuePools(queue=queue_to_wire(each.queue), known=each.known, pool_ids=each.pool_ids)
            for each in found
        ]
        return matcher_service_pb2.GetSubmitPoolsForQueueResponse(queues=queues, tree_version=world.tree.version)

    async def RequestJobs(
        self, request: matcher_service_pb2.RequestJobsRequest, context: Any
    ) -> matcher_service_pb2.RequestJobsResponse:
        identity = caller()
        assert identity.pilot is not None, "the role table lets none but pilots in"
        work = work_request_from_wire(request)
        await self._keep_contents(work.reports)
        arrived_s = looked_s = self._boot_clock()
        until_s = arrived_s + patience_s(context, request.wait_s, self._longest_wait_s)
        with self._polls.waiting(identity.pilot, work.slots) as waiter:
            response = await self._look(identity, request, work, waiter)
            results = tuple(response.results)
            while not (response.matches or response.commands):
                left_s = until_s - self._boot_clock()
                if left_s <= 0 or not await waiter.woken(left_s) or not self._polls.is_open:
                    break
                looked_s = self._boot_clock()
                response = await self._look(identity, request, replace(work, reports=()), waiter)
        for match in response.matches:
            match.lease_s += looked_s - arrived_s  # a lease counts from the sending of the request
        del response.results[:]
        response.results.extend(results)
        return response

    async def _look(
        self,
        identity: Identity,
        request: matcher_service_pb2.RequestJobsRequest,
        work: WorkRequest,
        waiter: Waiter,
    ) -> matcher_service_pb2.RequestJobsResponse:
        """Ask for jobs once; only an answer that has some is kept, for the rest may be asked again."""

        def ask(unit: Any, world: Any) -> tuple[matcher_service_pb2.RequestJobsResponse, bool]:
            answer = work_answer_to_wire(request_jobs(unit, world, identity, work))
            return answer, bool(answer.matches)

        waiter.looks()
        response = await self._transactions.once_it_counts(
            identity, "RequestJobs", _without_wait(request), matcher_service_pb2.RequestJobsResponse, ask
        )
        waiter.looked(Counter(match.task_queue for match in response.matches))
        return response

    async def ReportState(
        self, request: matcher_service_pb2.ReportStateRequest, context: Any
    ) -> matcher_service_pb2.ReportStateResponse:
        identity = caller()
        heartbeat = heartbeat_from_wire(request)
        await self._keep_contents(heartbeat.reports)

        def report(unit: Any, world: Any) -> tuple[matcher_service_pb2.ReportStateResponse, bool]:
            answer = report_state(unit, world, identity, heartbeat)
            # a mere renewal that is repeated has the effect of one, so its answer need not be kept
            return heartbeat_answer_to_wire(answer), bool(heartbeat.reports or heartbeat.ending)

        return await self._transactions.once_it_counts(
            identity, "ReportState", request, matcher_service_pb2.ReportStateResponse, report
        )

    async def _keep_contents(self, reports: Iterable[JobReport]) -> None:
        files = [file for report in reports for file in report.output_files if file.content is not None]
        if files:
            await asyncio.to_thread(keep_contents, self._store, files)


def _without_wait(request: matcher_service_pb2.RequestJobsRequest) -> matcher_service_pb2.RequestJobsRequest:
    """Return the request as it is recognised again: a pilot that cannot wait any longer repeats it so."""
    plain = matcher_service_pb2.RequestJobsRequest()
    plain.CopyFrom(request)
    plain.ClearField("wait_s")
    return plain
