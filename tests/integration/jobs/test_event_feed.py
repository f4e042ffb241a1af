"""The feed of events of a real server: without gaps, and each user's own alone."""

from __future__ import annotations

import asyncio

from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from support.wire_grid import WireGrid, a_job


async def test_the_feed_is_followed_and_resumed_without_a_gap(grid: WireGrid) -> None:
    grid.submit(a_job())
    async with grid.server.async_channel(grid.server.token(vo=grid.vo)) as channel:
        stub: job_service_pb2_grpc.JobServiceAsyncStub = job_service_pb2_grpc.JobServiceStub(channel)
        until_now = job_service_pb2.WatchEventsRequest(until_now=True)
        first = [page async for page in stub.WatchEvents(until_now)]
        follow = stub.WatchEvents(job_service_pb2.WatchEventsRequest(after_position=first[-1].position))
        pages = aiter(follow)
        assert not (await anext(pages)).events
        (job_id,) = await asyncio.to_thread(grid.submit, a_job())
        page = await anext(pages)

    assert [event.job_id for event in page.events] == [job_id]
    assert page.position > first[-1].position


def test_a_user_sees_his_own_events_only(grid: WireGrid) -> None:
    grid.submit(a_job())
    request = job_service_pb2.WatchEventsRequest(until_now=True)

    assert any(page.events for page in grid.jobs.WatchEvents(request))
    assert not any(page.events for page in grid.user("mallory").WatchEvents(request))
