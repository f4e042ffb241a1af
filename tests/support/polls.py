"""Calls of pilots and users that wait in a server, all under way at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc.aio

from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
)
from support.server import request_id
from support.wire_grid import WireGrid, WirePilot

SOON_S = 30.0
"""Calls that wait are answered by the news that they wait for; no test lets this time pass."""


class Polls:
    """Waiting calls; what is left of them is cancelled at the end of the block."""

    def __init__(self, grid: WireGrid) -> None:
        self._grid = grid
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Polls:
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def begin(self, pilot: WirePilot, **offer: Any) -> asyncio.Task[matcher_service_pb2.RequestJobsResponse]:
        """Return a pilot's long poll that has looked for work once, found none, and waits.

        `offer` are other fields of the slot that it offers.
        """
        matcher: Any = matcher_service_pb2_grpc.MatcherServiceStub(self._channel(pilot.token))
        poll = self._start(matcher.RequestJobs(pilot.request(wait_s=SOON_S, **offer), timeout=SOON_S + 20))
        await asyncio.sleep(0)
        # calls of one connection come to the server in their order, and its only writer takes them in that order
        await matcher.ReportState(matcher_service_pb2.ReportStateRequest(request_id=request_id()))
        return poll

    async def begin_wait(self, token: str, *job_ids: int) -> asyncio.Task[job_service_pb2.WaitForJobsResponse]:
        """Return a user's wait for jobs that is under way."""
        jobs: Any = job_service_pb2_grpc.JobServiceStub(self._channel(token))
        request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=SOON_S)
        wait = self._start(jobs.WaitForJobs(request, timeout=SOON_S + 20))
        await asyncio.sleep(0)
        await jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=job_ids))
        return wait

    def _channel(self, token: str) -> grpc.aio.Channel:
        channel = self._grid.server.async_channel(token)
        self._channels.append(channel)
        return channel

    def _start(self, call: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(_awaited(call))
        self._calls.append(task)
        return task


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call
