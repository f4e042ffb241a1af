"""MatcherService: the pilots' door."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from pilotage.clock import BootClock
from pilotage.v1 import matcher_service_pb2, matcher_service_pb2_grpc
from pilotage.wire import queue_to_wire
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.preemption import ORDER_LIFE
from pilotage_server.core.reports import HeldLease, JobReport
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.catch_up import catch_up
from pilotage_server.operations.files import keep_contents
from pilotage_server.operations.heartbeat_batch import HeartbeatBatch, HeartbeatCall
from pilotage_server.operations.idempotency import Asked
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.references import refer_to
from pilotage_server.operations.request_jobs import leases_left
from pilotage_server.operations.work import WorkAnswer, WorkRequest
from pilotage_server.operations.work_batch import WorkBatch, WorkCall, WorkDone
from pilotage_server.rpc.calls import Call, caller, hot
from pilotage_server.rpc.convert_matching import (
    heartbeat_answer_to_bytes,
    heartbeat_from_wire,
    results_to_wire,
    work_request_from_wire,
)
from pilotage_server.rpc.convert_values import queues_from_wire
from pilotage_server.rpc.deadlines import patience_s
from pilotage_server.rpc.long_polls import LongPolls
from pilotage_server.rpc.match_wire import MatchWriter
from pilotage_server.rpc.transactions import Transactions, digest
from pilotage_server.storage.file_store import FileStore

log = structlog.get_logger()

Response = matcher_service_pb2.RequestJobsResponse
Beat = matcher_service_pb2.ReportStateResponse


@dataclass(frozen=True, slots=True)
class _Request:
    """A call for jobs: what it asks, how long it would wait (seconds), and when it came (boot clock).

    `since` is the moment of the long polls before the call looked last.
    """

    call: Call[Response]
    asked: Asked
    work: WorkRequest
    wait_s: float
    arrived_s: float
    since: int

    @property
    def credential(self) -> PilotCredential:
        """Whose call it is."""
        assert self.asked.identity.pilot is not None, "the role table lets none but pilots in"
        return self.asked.identity.pilot


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
        self._requests = WorkBatch(transactions.world, MatchWriter().answer)
        self._heartbeats = HeartbeatBatch(transactions.world, heartbeat_answer_to_bytes)

    async def GetSubmitPoolsForQueue(
        self, request: matcher_service_pb2.GetSubmitPoolsForQueueRequest, call: Any
    ) -> matcher_service_pb2.GetSubmitPoolsForQueueResponse:
        world, asked = self._transactions.world, queues_from_wire(request.queues)
        found = get_submit_pools_for_queue(world, caller(), asked)
        if not all(each.known for each in found):  # another server may have put in a tree that has them
            await self._transactions.read(catch_up)
            found = get_submit_pools_for_queue(world, caller(), asked)
        queues = [
            matcher_service_pb2.QueuePools(queue=queue_to_wire(each.queue), known=each.known, pool_ids=each.pool_ids)
            for each in found
        ]
        return matcher_service_pb2.GetSubmitPoolsForQueueResponse(queues=queues, tree_version=world.tree.version)

    @hot
    def RequestJobs(self, request: matcher_service_pb2.RequestJobsRequest, call: Call[Response]) -> None:
        work = work_request_from_wire(request)
        wait_s = request.wait_s
        request.ClearField("wait_s")  # a pilot that cannot wait any longer repeats its request without
        asked = Asked.of(call.identity, "RequestJobs", request.request_id, digest(request))
        mine = _Request(call, asked, work, wait_s, self._boot_clock(), self._polls.moment)
        if _has_contents(work.reports):
            call.go_on(partial(self._find_work, mine))
        else:
            self._look(mine).add_done_callback(partial(self._looked, mine))

    def _look(self, mine: _Request, waited: timedelta = timedelta(0)) -> Future[WorkDone]:
        """Ask for jobs once, so long after the call came."""
        request = mine.work.after(waited) if waited else mine.work
        return self._transactions.database.submit_batch(self._requests, WorkCall(mine.asked, request, waited))

    def _looked(self, mine: _Request, look: Future[WorkDone]) -> None:
        """Answer, if the first look was all that it took."""
        error = look.exception()
        if error is not None:
            mine.call.fail(error)
        elif self._is_enough(mine, look.result()):
            mine.call.answer(look.result().response)
        else:
            mine.call.go_on(partial(self._go_on, mine, look.result()))

    def _is_enough(self, mine: _Request, done: WorkDone) -> bool:
        answer = done.answer
        if answer is None or answer.unreferred or answer.faults:
            return False
        return not mine.wait_s or _ends_the_wait(answer, mine.work.slots)

    async def _find_work(self, mine: _Request) -> bytes:
        """Keep the files that reports bring, then look for jobs."""
        await self._keep_contents(mine.work.reports)
        done = await asyncio.wrap_future(self._look(mine))
        return done.response if self._is_enough(mine, done) else await self._go_on(mine, done)

    async def _go_on(self, mine: _Request, done: WorkDone) -> bytes:
        """Return the answer that takes more than one look, waiting for jobs where the pilot would."""
        if done.answer is None:
            return await self._said_again(mine, done.response)
        _log_faults(mine.credential.stamp, done.answer.faults)
        first, results = done, done.answer.results
        if mine.work.reports:
            mine = replace(mine, work=mine.work.after(timedelta(0)))
        if done.answer.unreferred:
            await self._refer_to(done.answer.unreferred)
            mine = replace(mine, since=self._polls.moment)
            done = await asyncio.wrap_future(self._look(mine))
        if mine.wait_s and done.answer is not None and not _ends_the_wait(done.answer, mine.work.slots):
            done = await self._wait(mine, done)
        # Two pieces of a message, which its reader merges.
        return done.response if done is first else results_to_wire(results).SerializeToString() + done.response

    async def _wait(self, mine: _Request, done: WorkDone) -> WorkDone:
        """Look again whenever there is a reason to, until there is news or the time is over; return the last look."""
        longest_s = longest_wait_s(self._longest_wait_s, mine.work.slots)
        until_s = mine.arrived_s + patience_s(mine.call, mine.wait_s, longest_s)
        with self._polls.waiting(mine.credential, mine.work.slots, mine.since) as waiter:
            while (left_s := until_s - self._boot_clock()) > 0 and await self._polls.woken(waiter, left_s):
                waiter.looks()
                done = await asyncio.wrap_future(self._look(mine, self._since(mine)))
                waiter.looked(_taken(done.answer))
                if done.answer is None or _ends_the_wait(done.answer, mine.work.slots):
                    break
        return done

    def _since(self, mine: _Request) -> timedelta:
        return timedelta(seconds=self._boot_clock() - mine.arrived_s)

    async def _refer_to(self, names: frozenset[str]) -> None:
        """Let attributes of jobs tell task queues apart, so that the next look can match by them."""
        await self._transactions.write(lambda unit, world: refer_to(unit, world, names))

    async def _said_again(self, mine: _Request, kept: bytes) -> bytes:
        """Return an answer that is given again: it tells of its leases what is left of them, not how long they were."""
        response = Response.FromString(kept)
        matches = {HeldLease(match.job_id, match.attempt): match for match in response.matches}
        identity = mine.asked.identity
        left = await self._transactions.read(lambda unit, _: leases_left(unit, identity, tuple(matches)))
        for held, length in left.items():  # counted from when the call came, but for those that have ended
            matches[held].lease_s = (length + self._since(mine)).total_seconds() if length else 0.0
        return response.SerializeToString()

    @hot
    def ReportState(self, request: matcher_service_pb2.ReportStateRequest, call: Call[Beat]) -> None:
        heartbeat = heartbeat_from_wire(request)
        asked = Asked.of(call.identity, "ReportState", request.request_id, digest(request))
        mine = HeartbeatCall(asked, heartbeat)
        if _has_contents(heartbeat.reports):
            call.go_on(partial(self._beat_with_contents, mine))
        else:
            self._beat(mine).add_done_callback(call.answer_with)

    def _beat(self, mine: HeartbeatCall) -> Future[bytes]:
        return self._transactions.database.submit_batch(self._heartbeats, mine)

    async def _beat_with_contents(self, mine: HeartbeatCall) -> bytes:
        await self._keep_contents(mine.heartbeat.reports)
        return await asyncio.wrap_future(self._beat(mine))

    async def _keep_contents(self, reports: Iterable[JobReport]) -> None:
        files = [file for report in reports for file in report.output_files if file.content is not None]
        if files:
            await asyncio.to_thread(keep_contents, self._store, files)


def _taken(answer: WorkAnswer | None) -> Counter[int]:
    """Return how many jobs a look has given, by task queue."""
    return Counter() if answer is None else Counter(match.task_queue_id for match in answer.matches)


def _has_contents(reports: Iterable[JobReport]) -> bool:
    """Whether reports bring files to be kept."""
    return any(file.content is not None for report in reports for file in report.output_files)


def _ends_the_wait(answer: WorkAnswer, slots: Iterable[SlotOffer]) -> bool:
    """Whether the pilot hears something new; that a slot is still to vacate, as it was told before, is not."""
    if answer.matches or answer.commands or answer.ad_parts_wanted or answer.node_settings is not None:
        return True
    return {vacate.slot for vacate in answer.vacates} != _told_to_vacate(slots)


def longest_wait_s(usual_s: float, slots: Iterable[SlotOffer]) -> float:
    """Return how long a call may wait: one about slots that are to vacate asks again before that is forgotten."""
    return min(usual_s, ORDER_LIFE.total_seconds() / 2) if _told_to_vacate(slots) else usual_s


def _told_to_vacate(slots: Iterable[SlotOffer]) -> set[str]:
    """Return the names of the slots that have been told to vacate and have not done so yet."""
    return {slot.name for slot in slots if slot.occupied is not None and slot.occupied.ordered}


def _log_faults(stamp: str, faults: Mapping[str, str]) -> None:
    for slot, why in faults.items():
        log.warning("slot gets no jobs for its policy", pilot_stamp=stamp, slot=slot, why=why)
