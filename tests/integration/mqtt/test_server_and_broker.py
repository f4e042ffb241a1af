"""A server with a broker: announcements of jobs and detection of lost pilots, with a real Mosquitto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pilotage.mqtt.topics import Message, NodeStatus, Topics, read_probability
from pilotage.v1 import job_service_pb2, pilot_service_pb2
from support.mosquitto import MosquittoServer, RecordingSubscriber, broker_link
from support.server import running_server
from support.wire_grid import WireGrid, WirePilot, a_job

pytestmark = pytest.mark.process

TOPICS = Topics()


@pytest.fixture
def grid(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[WireGrid]:
    """Return a grid whose server has a broker."""
    with running_server(tmp_path / "data", broker=mosquitto.url) as server:
        grid = WireGrid(server)
        grid.put_tree()
        yield grid
        grid.close()


@pytest.fixture
async def listener(mosquitto: MosquittoServer, grid: WireGrid) -> AsyncIterator[RecordingSubscriber]:
    """Return a listener of all messages on the broker."""
    async with broker_link(mosquitto, "listener", f"{TOPICS.prefix}/#") as (_, listener):
        yield listener


async def next_message(listener: RecordingSubscriber, topic: str) -> Message:
    """Return the next message on a topic."""
    while (message := await listener.next()).topic != topic:
        pass
    return message


def status_of(pilot: WirePilot, **fields: int | bool) -> NodeStatus:
    return NodeStatus(pilot.stamp, "node1", "SITE/ce1/long", **fields)  # type: ignore[arg-type]


def state_of(grid: WireGrid, pilot: WirePilot) -> str:
    request = pilot_service_pb2.ListPilotsRequest(ended=True)
    (state,) = (info.state for info in grid.pilots.ListPilots(request).pilots if info.stamp == pilot.stamp)
    return pilot_service_pb2.PilotState.Name(state)


async def test_jobs_of_one_submission_are_announced_together(grid: WireGrid, listener: RecordingSubscriber) -> None:
    (first, *_) = await asyncio.to_thread(grid.submit, a_job(Memory=500), a_job(Memory=500), a_job(Memory=500))
    pool = grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[first])).jobs[0].pool
    message = await next_message(listener, TOPICS.pool(pool))
    assert json.loads(message.payload)["jobs"] == 3
    assert not message.retained


async def test_one_job_wakes_few_of_many_idle_slots(
    grid: WireGrid, listener: RecordingSubscriber, mosquitto: MosquittoServer
) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    async with broker_link(mosquitto, pilot.stamp) as (link, _):
        link.publish(status_of(pilot, idle_slots=100).message(TOPICS))
        async with asyncio.timeout(20):
            await asyncio.to_thread(grid.submit, a_job())
            # The server may receive the idle slots later than this test: each job is announced separately.
            while read_probability(await next_message(listener, TOPICS.pool(""))) != pytest.approx(0.055):
                await asyncio.to_thread(grid.submit, a_job())


async def test_disconnected_pilot_is_lost_until_its_next_heartbeat(
    grid: WireGrid, listener: RecordingSubscriber, mosquitto: MosquittoServer
) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    will = status_of(pilot, online=False).message(TOPICS)
    async with broker_link(mosquitto, pilot.stamp, will=will) as (link, _):
        link.publish(status_of(pilot).message(TOPICS))
        await next_message(listener, TOPICS.node(pilot.stamp))
        assert state_of(grid, pilot) == "PILOT_STATE_RUNNING"
        async with broker_link(mosquitto, pilot.stamp):
            await next_message(listener, TOPICS.node(pilot.stamp))
            async with asyncio.timeout(20):
                while await asyncio.to_thread(state_of, grid, pilot) != "PILOT_STATE_LOST":
                    pass
    await asyncio.to_thread(pilot.heartbeat)
    assert state_of(grid, pilot) == "PILOT_STATE_RUNNING"


async def test_removed_job_makes_its_pilot_poll(grid: WireGrid, listener: RecordingSubscriber) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    (job_id,) = await asyncio.to_thread(grid.submit, a_job())
    assert (await asyncio.to_thread(pilot.request_jobs)).matches
    await asyncio.to_thread(grid.change, job_service_pb2.JOB_CHANGE_REMOVE, job_id)
    assert not (await next_message(listener, TOPICS.poll(pilot.stamp))).retained


async def test_server_works_without_reachable_broker(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", broker="mqtt://127.0.0.1:1") as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot = grid.start_pilot()
        (job_id,) = grid.submit(a_job())
        assert [match.job_id for match in pilot.request_jobs().matches] == [job_id]
        grid.close()
