"""A server that has a broker: who hears of new jobs, and how a pilot is seen as lost. Real server, real Mosquitto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pilotage.mqtt.topics import Message, NodeStatus, Topics, read_probability
from pilotage.v1 import job_service_pb2, pilot_service_pb2
from support.mosquitto import Ear, MosquittoServer, linked
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
async def ear(mosquitto: MosquittoServer, grid: WireGrid) -> AsyncIterator[Ear]:
    """Return who hears everything that is said on the broker."""
    async with linked(mosquitto, "ear", f"{TOPICS.prefix}/#") as (_, ear):
        yield ear


async def heard(ear: Ear, topic: str) -> Message:
    """Return the next message on a topic."""
    while (message := await ear.next()).topic != topic:
        pass
    return message


def news_of(pilot: WirePilot, **said: int | bool) -> NodeStatus:
    return NodeStatus(pilot.stamp, "node1", "SITE/ce1/long", **said)  # type: ignore[arg-type]


def state_of(grid: WireGrid, pilot: WirePilot) -> str:
    request = pilot_service_pb2.ListPilotsRequest(ended=True)
    (state,) = (each.state for each in grid.pilots.ListPilots(request).pilots if each.stamp == pilot.stamp)
    return pilot_service_pb2.PilotState.Name(state)


async def test_jobs_of_one_submission_are_announced_together_to_their_pool(grid: WireGrid, ear: Ear) -> None:
    (first, *_) = await asyncio.to_thread(grid.submit, a_job(Memory=500), a_job(Memory=500), a_job(Memory=500))
    pool = grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[first])).jobs[0].pool
    message = await heard(ear, TOPICS.pool(pool))
    assert json.loads(message.payload)["jobs"] == 3
    assert not message.retained


async def test_few_of_many_idle_pilots_are_called_for_one_job(
    grid: WireGrid, ear: Ear, mosquitto: MosquittoServer
) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    async with linked(mosquitto, pilot.stamp) as (link, _):
        link.publish(news_of(pilot, idle_slots=100).message(TOPICS))
        async with asyncio.timeout(20):
            await asyncio.to_thread(grid.submit, a_job())
            # The server may hear of the idle slots later than this test does: each job is called for on its own.
            while read_probability(await heard(ear, TOPICS.pool(""))) != pytest.approx(0.055):
                await asyncio.to_thread(grid.submit, a_job())


async def test_a_pilot_whose_connection_breaks_is_lost_until_it_is_heard_again(
    grid: WireGrid, ear: Ear, mosquitto: MosquittoServer
) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    will = news_of(pilot, online=False).message(TOPICS)
    async with linked(mosquitto, pilot.stamp, will=will) as (link, _):
        link.publish(news_of(pilot).message(TOPICS))
        await heard(ear, TOPICS.node(pilot.stamp))
        assert state_of(grid, pilot) == "PILOT_STATE_RUNNING"
        async with linked(mosquitto, pilot.stamp):
            await heard(ear, TOPICS.node(pilot.stamp))
            async with asyncio.timeout(20):
                while await asyncio.to_thread(state_of, grid, pilot) != "PILOT_STATE_LOST":
                    pass
    await asyncio.to_thread(pilot.heartbeat)
    assert state_of(grid, pilot) == "PILOT_STATE_RUNNING"


async def test_a_pilot_that_is_to_stop_a_job_is_told_to_ask(grid: WireGrid, ear: Ear) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    (job_id,) = await asyncio.to_thread(grid.submit, a_job())
    assert (await asyncio.to_thread(pilot.ask)).matches
    await asyncio.to_thread(grid.change, job_service_pb2.JOB_CHANGE_REMOVE, job_id)
    assert not (await heard(ear, TOPICS.poll(pilot.stamp))).retained


async def test_a_server_whose_broker_is_away_serves_all_the_same(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", broker="mqtt://127.0.0.1:1") as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot = grid.start_pilot()
        (job_id,) = grid.submit(a_job())
        assert [match.job_id for match in pilot.ask().matches] == [job_id]
        grid.close()
