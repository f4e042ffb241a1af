"""MatcherService: requests for jobs and heartbeats of pilots."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from pilotage import clock
from pilotage.clock import BootClock
from pilotage.rpc.wire import queue_to_wire
from pilotage.tracing.recording import is_tracing
from pilotage.v1 import matcher_service_pb2, matcher_service_pb2_grpc
from pilotage.values.attempts import AttemptKey
from pilotage.values.offers import SlotOffer
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.containers import BoundedCache
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.matching.preemption import ORDER_LIFE
from pilotage_server.operations.attempts.heartbeats import HeartbeatBatch, HeartbeatCall
from pilotage_server.operations.attempts.tails import post_tail
from pilotage_server.operations.idempotency import IdempotentRequest
from pilotage_server.operations.jobs.files import store_contents
from pilotage_server.operations.matching.offers import read_offers_ahead
from pilotage_server.operations.matching.request_jobs import WorkBatch, WorkCall, WorkDone, leases_left
from pilotage_server.operations.matching.work import WorkAnswer, WorkRequest
from pilotage_server.operations.queueing.rekeying import add_references
from pilotage_server.operations.resources.pools import get_submit_pools_for_queue
from pilotage_server.operations.startup.sync import sync_resources
from pilotage_server.rpc.framework.calls import Call, caller, hot, wait_time_s
from pilotage_server.rpc.framework.transactions import Transactions, digest
from pilotage_server.rpc.framework.wire_values import queues_from_wire
from pilotage_server.rpc.matching.long_polls import LongPolls
from pilotage_server.rpc.matching.match_encoding import MatchWriter
from pilotage_server.rpc.matching.spans import CallSpans
from pilotage_server.rpc.matching.wire import (
    heartbeat_answer_to_bytes,
    heartbeat_from_wire,
    results_to_wire,
    tail_from_wire,
    work_request_from_wire,
)
from pilotage_server.storage.blobs.base import FileStore

log = structlog.get_logger()

CONTENT_THREADS = 4
"""Threads that store the files in reports."""

MAX_ADS_IN_TRANSACTION = 32 * 1024
"""Characters of ads that are read while other matches wait; more are read before, by one thread for all pilots."""

Response = matcher_service_pb2.RequestJobsResponse
HeartbeatResponse = matcher_service_pb2.ReportStateResponse


@dataclass(frozen=True, slots=True)
class _Request:
    """A call for jobs: its request, how long it would wait (seconds), and when it arrived (boot clock).

    `generation` is that of the long polls before the last attempt to match.
    """

    call: Call[Response]
    asked: IdempotentRequest
    work: WorkRequest
    wait_s: float
    arrived_s: float
    generation: int

    @property
    def credential(self) -> PilotCredential:
        """The credential of the pilot."""
        assert self.asked.identity.pilot is not None, "the role table admits pilots only"
        return self.asked.identity.pilot


class MatcherServicer(matcher_service_pb2_grpc.MatcherServiceServicer):
    """Matches jobs to slots."""

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
        # Reasons for slots without jobs, by the stamp of their pilot.
        self._sent_faults = BoundedCache[str, frozenset[str]]()
        self._requests = WorkBatch(transactions.state, MatchWriter().encode)
        # Not the loop's own threads: uploads of users may occupy those.
        self._content_threads = ThreadPoolExecutor(CONTENT_THREADS, thread_name_prefix="contents")
        self._ad_thread = ThreadPoolExecutor(1, thread_name_prefix="ads")
        self._heartbeats = HeartbeatBatch(transactions.state, heartbeat_answer_to_bytes)

    async def GetSubmitPoolsForQueue(
        self, request: matcher_service_pb2.GetSubmitPoolsForQueueRequest, call: Any
    ) -> matcher_service_pb2.GetSubmitPoolsForQueueResponse:
        state, wanted = self._transactions.state, queues_from_wire(request.queues)
        found = get_submit_pools_for_queue(state, caller(), wanted)
        if not all(each.known for each in found):  # another server may have stored a tree that has them
            await self._transactions.read(sync_resources)
            found = get_submit_pools_for_queue(state, caller(), wanted)
        queues = [
            matcher_service_pb2.QueuePools(queue=queue_to_wire(each.queue), known=each.known, pool_ids=each.pool_ids)
            for each in found
        ]
        return matcher_service_pb2.GetSubmitPoolsForQueueResponse(queues=queues, tree_version=state.tree.version)

    @hot
    def RequestJobs(self, request: matcher_service_pb2.RequestJobsRequest, call: Call[Response]) -> None:
        work = work_request_from_wire(request)
        wait_s = request.wait_s
        request.ClearField("wait_s")  # not in the digest: a pilot may repeat its request with a shorter wait
        key = IdempotentRequest.of(call.identity, "RequestJobs", request.request_id, digest(request))
        pending = _Request(call, key, work, wait_s, self._boot_clock(), self._polls.generation)
        if _has_contents(work.reports) or _ad_characters(work) > MAX_ADS_IN_TRANSACTION:
            call.answer_async(partial(self._match_prepared, pending))
        else:
            self._try_match(pending).add_done_callback(partial(self._on_first_match, pending))

    def _try_match(self, pending: _Request, waited: timedelta = timedelta(0)) -> Future[WorkDone]:
        """Try to match once, `waited` after the call arrived."""
        request = pending.work.after(waited) if waited else pending.work
        attempt = self._transactions.database.submit_batch(self._requests, WorkCall(pending.asked, request, waited))
        if is_tracing():
            attempt.add_done_callback(CallSpans(pending.credential, clock.now(), request.reports).record_work)
        return attempt

    def _on_first_match(self, pending: _Request, attempt: Future[WorkDone]) -> None:
        """Answer if the first attempt was enough; else continue as a coroutine."""
        error = attempt.exception()
        if error is not None:
            pending.call.fail(error)
        elif self._is_final(pending, attempt.result()):
            pending.call.answer(attempt.result().response)
        else:
            pending.call.answer_async(partial(self._continue, pending, attempt.result()))

    def _is_final(self, pending: _Request, done: WorkDone) -> bool:
        answer = done.answer
        if answer is None or answer.unreferred or answer.faults:
            return False
        return not pending.wait_s or _ends_wait(answer, pending.work.slots)

    async def _match_prepared(self, pending: _Request) -> bytes:
        """Store the files in the reports, read large ads, then try to match."""
        work = pending.work
        await self._keep_contents(work.reports)
        if _ad_characters(work) > MAX_ADS_IN_TRANSACTION:
            state, queue = self._transactions.state, pending.credential.queue
            read = partial(read_offers_ahead, state, queue, work.ad_parts, work.slots)
            await asyncio.get_running_loop().run_in_executor(self._ad_thread, read)
        done = await asyncio.wrap_future(self._try_match(pending))
        return done.response if self._is_final(pending, done) else await self._continue(pending, done)

    async def _continue(self, pending: _Request, done: WorkDone) -> bytes:
        """Return the answer that needs more than one attempt, waiting for jobs if the request allows it."""
        if done.answer is None:
            return await self._replayed_answer(pending, done.response)
        is_news = self._has_new_faults(pending.credential.stamp, done.answer.faults)
        first, results = done, done.answer.results
        if pending.work.reports:
            pending = replace(pending, work=pending.work.after(timedelta(0)))
        if done.answer.unreferred:
            await self._add_significant_attributes(done.answer.unreferred)
            pending = replace(pending, generation=self._polls.generation)
            done = await asyncio.wrap_future(self._try_match(pending))
        if (
            pending.wait_s
            and not is_news
            and done.answer is not None
            and not _ends_wait(done.answer, pending.work.slots)
        ):
            done = await self._wait(pending, done)
        # Concatenated messages are merged by the reader (Protocol Buffers, "Encoding").
        return done.response if done is first else results_to_wire(results).SerializeToString() + done.response

    async def _wait(self, pending: _Request, done: WorkDone) -> WorkDone:
        """Try to match at each wake-up until there is an answer or the time is over; return the last attempt."""
        longest_s = longest_wait_s(self._longest_wait_s, pending.work.slots)
        until_s = pending.arrived_s + wait_time_s(pending.call, pending.wait_s, longest_s)
        with self._polls.waiting(pending.credential, pending.work.slots, pending.generation) as waiting:
            while (left_s := until_s - self._boot_clock()) > 0 and await self._polls.wait(waiting, left_s):
                with self._polls.look(waiting) as taken:
                    done = await asyncio.wrap_future(self._try_match(pending, self._waited(pending)))
                    taken.update(_matched_counts(done.answer))
                if done.answer is None or _ends_wait(done.answer, pending.work.slots):
                    break
                if self._has_new_faults(pending.credential.stamp, done.answer.faults):
                    break
        return done

    def _has_new_faults(self, stamp: str, faults: Mapping[str, str]) -> bool:
        """Return whether no answer to the pilot has had some of these reasons; log and remember them then."""
        sent = self._sent_faults.known.get(stamp, frozenset())
        reasons = sent.union(faults.values())
        if reasons == sent:
            return False
        _log_faults(stamp, faults)
        self._sent_faults.put(stamp, reasons, sum(map(len, reasons)))
        return True

    def _waited(self, pending: _Request) -> timedelta:
        return timedelta(seconds=self._boot_clock() - pending.arrived_s)

    async def _add_significant_attributes(self, names: frozenset[str]) -> None:
        """Let the task queues distinguish jobs by these attributes, so that the next attempt can match by them."""
        await self._transactions.write(lambda transaction, state: add_references(transaction, state, names))

    async def _replayed_answer(self, pending: _Request, stored: bytes) -> bytes:
        """Return a stored answer with the time that is left of its leases."""
        response = Response.FromString(stored)
        matches = {AttemptKey(match.job_id, match.attempt): match for match in response.matches}
        identity = pending.asked.identity
        left = await self._transactions.read(lambda transaction, _: leases_left(transaction, identity, tuple(matches)))
        for held, length in left.items():  # a lease counts from the arrival of the call; 0 = it has ended
            matches[held].lease_s = (length + self._waited(pending)).total_seconds() if length else 0.0
        return response.SerializeToString()

    @hot
    def ReportState(self, request: matcher_service_pb2.ReportStateRequest, call: Call[HeartbeatResponse]) -> None:
        heartbeat = heartbeat_from_wire(request)
        key = IdempotentRequest.of(call.identity, "ReportState", request.request_id, digest(request))
        pending = HeartbeatCall(key, heartbeat)
        if _has_contents(heartbeat.reports):
            call.answer_async(partial(self._heartbeat_with_contents, pending))
        else:
            self._submit_heartbeat(pending).add_done_callback(call.answer_with)

    async def PostTail(
        self, request: matcher_service_pb2.PostTailRequest, call: Any
    ) -> matcher_service_pb2.PostTailResponse:
        identity, (stream, offset, content) = caller(), tail_from_wire(request)
        wanted = await self._transactions.write(
            lambda transaction, _: post_tail(transaction, identity, stream, offset, content)
        )
        return matcher_service_pb2.PostTailResponse(wanted=wanted)

    def _submit_heartbeat(self, pending: HeartbeatCall) -> Future[bytes]:
        recorded = self._transactions.database.submit_batch(self._heartbeats, pending)
        if is_tracing():
            pilot = pending.asked.identity.pilot
            assert pilot is not None, "the role table admits pilots only"
            recorded.add_done_callback(CallSpans(pilot, clock.now(), pending.heartbeat.reports).record_heartbeat)
        return recorded

    async def _heartbeat_with_contents(self, pending: HeartbeatCall) -> bytes:
        await self._keep_contents(pending.heartbeat.reports)
        return await asyncio.wrap_future(self._submit_heartbeat(pending))

    async def _keep_contents(self, reports: Iterable[JobReport]) -> None:
        files = [file for report in reports for file in report.output_files if file.content is not None]
        if files:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._content_threads, store_contents, self._store, files)


def _matched_counts(answer: WorkAnswer | None) -> Counter[int]:
    """Return the number of matched jobs by task queue."""
    return Counter() if answer is None else Counter(match.task_queue_id for match in answer.matches)


def _ad_characters(work: WorkRequest) -> int:
    return sum(len(part.text) for part in work.ad_parts) + sum(len(slot.ad_changes) for slot in work.slots)


def _has_contents(reports: Iterable[JobReport]) -> bool:
    return any(file.content is not None for report in reports for file in report.output_files)


def _ends_wait(answer: WorkAnswer, slots: Iterable[SlotOffer]) -> bool:
    """Return whether the pilot has to be answered; a repeated order to vacate is no reason."""
    if answer.matches or answer.commands or answer.ad_parts_wanted or answer.node_settings is not None or answer.tails:
        return True
    return {vacate.slot for vacate in answer.vacates} != _vacating_slots(slots)


def longest_wait_s(usual_s: float, slots: Iterable[SlotOffer]) -> float:
    """Return how long a call may wait; a call with slots to vacate has to return before the order expires."""
    return min(usual_s, ORDER_LIFE.total_seconds() / 2) if _vacating_slots(slots) else usual_s


def _vacating_slots(slots: Iterable[SlotOffer]) -> set[str]:
    """Return the names of the occupied slots that have an order to vacate."""
    return {slot.name for slot in slots if slot.occupied is not None and slot.occupied.ordered}


def _log_faults(stamp: str, faults: Mapping[str, str]) -> None:
    for slot, why in faults.items():
        log.warning("slot gets no jobs", pilot_stamp=stamp, slot=slot, why=why)
