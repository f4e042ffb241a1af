"""MatcherService: the pilots' door."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import structlog

from pilotage.clock import BootClock
from pilotage.v1 import matcher_service_pb2, matcher_service_pb2_grpc
from pilotage.wire import queue_to_wire
from pilotage_server.core.identity import Identity
from pilotage_server.core.preemption import ORDER_LIFE
from pilotage_server.core.reports import HeldLease, JobReport
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.files import keep_contents
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.references import refer_to
from pilotage_server.operations.report_state import report_state
from pilotage_server.operations.request_jobs import leases_left, request_jobs
from pilotage_server.operations.work import WorkAnswer, WorkRequest
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_matching import (
    heartbeat_answer_to_wire,
    heartbeat_from_wire,
    work_answer_to_wire,
    work_request_from_wire,
)
from pilotage_server.rpc.convert_values import queues_from_wire
from pilotage_server.rpc.deadlines import patience_s
from pilotage_server.rpc.long_polls import LongPolls, Waiter
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.file_store import FileStore

log = structlog.get_logger()


class _Look(NamedTuple):
    """What one look gave: the response, and what else is to be done about the slots' policies."""

    response: matcher_service_pb2.RequestJobsResponse
    unreferred: frozenset[str]
    faults: Mapping[str, str]


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
        until_s = arrived_s + patience_s(context, request.wait_s, longest_wait_s(self._longest_wait_s, work.slots))
        with self._polls.waiting(identity.pilot, work.slots) as waiter:
            look = await self._look(identity, request, work, waiter)
            results = tuple(look.response.results)
            _log_faults(identity.pilot.stamp, look.faults)
            if look.unreferred:
                await self._refer_to(look.unreferred)
                look = await self._look(identity, request, work.after(timedelta(0)), waiter)
            while not _ends_the_wait(look.response, work.slots):
                left_s = until_s - self._boot_clock()
                if left_s <= 0 or not await waiter.woken(left_s) or not self._polls.is_open:
                    break
                looked_s = self._boot_clock()
                now_asked = work.after(timedelta(seconds=looked_s - arrived_s))
                look = await self._look(identity, request, now_asked, waiter)
        response = look.response
        for match in response.matches:
            match.lease_s += looked_s - arrived_s  # a lease counts from the sending of the request
        del response.results[:]
        response.results.extend(results)
        return response

    async def _refer_to(self, names: frozenset[str]) -> None:
        """Let attributes of jobs tell task queues apart, so that the next look can match by them."""
        await self._transactions.write(lambda unit, world: refer_to(unit, world, names))

    async def _look(
        self,
        identity: Identity,
        request: matcher_service_pb2.RequestJobsRequest,
        work: WorkRequest,
        waiter: Waiter,
    ) -> _Look:
        """Ask for jobs once; only an answer that has some is kept, for the rest may be asked again."""
        answers: list[WorkAnswer] = []

        def ask(
            unit: Unit, world: World, before: matcher_service_pb2.RequestJobsResponse | None
        ) -> tuple[matcher_service_pb2.RequestJobsResponse, bool]:
            if before is not None:
                _count_leases_anew(unit, identity, before)
                return before, True
            answers[:] = [request_jobs(unit, world, identity, work)]
            response = work_answer_to_wire(answers[0])
            return response, bool(response.matches)

        waiter.looks()
        response = await self._transactions.once_it_counts(
            identity, "RequestJobs", _without_wait(request), matcher_service_pb2.RequestJobsResponse, ask
        )
        waiter.looked(Counter(match.task_queue for match in response.matches))
        answer = answers[0] if answers else WorkAnswer()
        return _Look(response, answer.unreferred, answer.faults)

    async def ReportState(
        self, request: matcher_service_pb2.ReportStateRequest, context: Any
    ) -> matcher_service_pb2.ReportStateResponse:
        identity = caller()
        heartbeat = heartbeat_from_wire(request)
        await self._keep_contents(heartbeat.reports)

        def report(
            unit: Unit, world: World, before: matcher_service_pb2.ReportStateResponse | None
        ) -> tuple[matcher_service_pb2.ReportStateResponse, bool]:
            if before is None or heartbeat.ending:
                answer = before or heartbeat_answer_to_wire(report_state(unit, world, identity, heartbeat), unit.now)
                # a mere renewal that is repeated has the effect of one, so its answer need not be kept
                return answer, bool(heartbeat.reports or heartbeat.ending)
            again = heartbeat_answer_to_wire(report_state(unit, world, identity, heartbeat.said_again()), unit.now)
            again.results.extend(before.results)
            return again, True

        return await self._transactions.once_it_counts(
            identity, "ReportState", request, matcher_service_pb2.ReportStateResponse, report
        )

    async def _keep_contents(self, reports: Iterable[JobReport]) -> None:
        files = [file for report in reports for file in report.output_files if file.content is not None]
        if files:
            await asyncio.to_thread(keep_contents, self._store, files)


def _count_leases_anew(unit: Unit, identity: Identity, response: matcher_service_pb2.RequestJobsResponse) -> None:
    """Let an answer that is given again tell of its leases what is left of them, not how long they once were."""
    matches = {HeldLease(match.job_id, match.attempt): match for match in response.matches}
    for held, left in leases_left(unit, identity, tuple(matches)).items():
        matches[held].lease_s = left.total_seconds()


def _ends_the_wait(response: matcher_service_pb2.RequestJobsResponse, slots: Iterable[SlotOffer]) -> bool:
    """Whether the pilot hears something new; that a slot is still to vacate, as it was told before, is not."""
    told_before = _told_to_vacate(slots)
    told_now = {vacate.slot for vacate in response.vacate}
    asks_for_more = response.ad_parts_wanted or response.HasField("node_attributes")
    return bool(response.matches or response.commands or asks_for_more) or told_now != told_before


def longest_wait_s(usual_s: float, slots: Iterable[SlotOffer]) -> float:
    """Return how long a call may wait: one about slots that are to vacate asks again before that is forgotten."""
    return min(usual_s, ORDER_LIFE.total_seconds() / 2) if _told_to_vacate(slots) else usual_s


def _told_to_vacate(slots: Iterable[SlotOffer]) -> set[str]:
    """Return the names of the slots that have been told to vacate and have not done so yet."""
    return {slot.name for slot in slots if slot.occupied is not None and slot.occupied.ordered}


def _log_faults(stamp: str, faults: Mapping[str, str]) -> None:
    for slot, why in faults.items():
        log.warning("slot gets no jobs for its policy", pilot_stamp=stamp, slot=slot, why=why)


def _without_wait(request: matcher_service_pb2.RequestJobsRequest) -> matcher_service_pb2.RequestJobsRequest:
    """Return the request as it is recognised again: a pilot that cannot wait any longer repeats it so."""
    plain = matcher_service_pb2.RequestJobsRequest()
    plain.CopyFrom(request)
    plain.ClearField("wait_s")
    return plain
