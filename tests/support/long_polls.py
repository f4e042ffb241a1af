"""Long polls of pilots and users: waiting calls in memory, and pending calls at a real server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import grpc.aio

from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
)
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.matching.long_polls import LongPolls
from pilotage_server.rpc.matching.waiting_calls import WaitingCall
from support.server import Token, request_id
from support.wire_grid import WireGrid, WirePilot

QUEUE = QueueId("S", "ce", "q")
AT_ONCE_S = 0.0


POLL_TIMEOUT_S = 30.0
"""The timeout of long polls, which end before it by the event that they wait for."""


def a_task_queue(id_: int = 1, cpus: int = 1) -> TaskQueue:
    needs = JobNeeds((), (), (), None, cpus, None, None, None)
    return TaskQueue(id_, Traits(Account("sky", "grp", "alice"), "", needs))


class FakeMatchEstimator:
    """Estimates by the number of cores alone; `calls` counts the estimates.

    `jobs` has the numbers of jobs that are left, by task queue; any number where it has none. The task queues in
    `failing` raise an error.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.jobs: dict[int, int] = {}
        self.failing: set[int] = set()

    def of(self, task_queue: TaskQueue, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        self.calls += 1
        if task_queue.id in self.failing:
            raise KeyError(task_queue.id)
        found = PossibleSlots.NONE
        for slot in slots:
            if slot.free.cpus >= (task_queue.needs.cpus or 1):
                found |= PossibleSlots.FREE_SLOT if slot.occupied is None else PossibleSlots.OCCUPIED_SLOT
        return found

    def upper_bound(
        self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        return self.of(task_queue, credential, [slot._replace(free=Amounts(cpus=1000)) for slot in slots])

    def jobs_left(self, task_queue: TaskQueue) -> int:
        return self.jobs.get(task_queue.id, sys.maxsize)

    def slot_class(self, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        return tuple(slot.occupied is None for slot in slots)


class LongPollBench:
    """Waiting calls in memory, each with the stamp of its pilot."""

    def __init__(self) -> None:
        self.estimator = FakeMatchEstimator()
        self.polls = LongPolls(self.estimator)
        self._stack = ExitStack()

    def __enter__(self) -> LongPollBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_jobs(self, task_queue: TaskQueue, count: int) -> None:
        self.polls.announce_jobs(task_queue, count)
        self.polls.wake_for_jobs(task_queue, count)

    def look(self, call: WaitingCall, taken: Mapping[int, int] | None = None) -> None:
        """Let the call look and take so many jobs, by task queue."""
        with self.polls.look(call) as counts:
            counts.update(taken or {})

    def enter(self, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> WaitingCall:
        return self.enter_late(self.polls.generation, stamp, cpus, is_occupied=is_occupied)

    def enter_late(self, since: int, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> WaitingCall:
        offer = SlotOffer("slot1", Amounts(cpus=cpus), occupied=OccupiedSlot(1, 1) if is_occupied else None)
        return self._stack.enter_context(self.polls.waiting(PilotCredential(stamp, QUEUE), [offer], since))


async def woken(*waiters: WaitingCall) -> list[bool]:
    return [await waiter.wait(AT_ONCE_S) for waiter in waiters]


class PendingPolls:
    """Pending long polls; those that are left are cancelled at the end of the block."""

    def __init__(self, grid: WireGrid) -> None:
        self._grid = grid
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> PendingPolls:
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def begin(self, pilot: WirePilot, **offer: Any) -> asyncio.Task[matcher_service_pb2.RequestJobsResponse]:
        """Return a pilot's long poll that has found no job and waits.

        `offer` are other fields of its slot offer.
        """
        matcher: Any = matcher_service_pb2_grpc.MatcherServiceStub(self._channel(pilot.token))
        poll = self._start(
            matcher.RequestJobs(pilot.request(wait_s=POLL_TIMEOUT_S, **offer), timeout=POLL_TIMEOUT_S + 20)
        )
        await asyncio.sleep(0)
        # the server handles the calls of one connection in order, since it has a single writer
        await matcher.ReportState(matcher_service_pb2.ReportStateRequest(request_id=request_id()))
        return poll

    async def begin_wait(self, token: str, *job_ids: int) -> asyncio.Task[job_service_pb2.WaitForJobsResponse]:
        """Return a user's pending wait for jobs."""
        jobs: Any = job_service_pb2_grpc.JobServiceStub(self._channel(token))
        request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=POLL_TIMEOUT_S)
        wait = self._start(jobs.WaitForJobs(request, timeout=POLL_TIMEOUT_S + 20))
        await asyncio.sleep(0)
        await jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=job_ids))
        return wait

    def _channel(self, token: Token) -> grpc.aio.Channel:
        channel = self._grid.server.async_channel(token)
        self._channels.append(channel)
        return channel

    def _start(self, call: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(_awaited(call))
        self._calls.append(task)
        return task


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call
