"""A server with a broker: announcements of jobs and detection of lost pilots, with a real Mosquitto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.mqtt.topics import Message, NodeStatus, Topics, read_probability
from pilotage.v1 import job_service_pb2, pilot_service_pb2
from support.mosquitto import MosquittoServer, RecordingSubscriber, broker_link
from support.postgresql import PostgresqlServer
from support.processes import until
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, WirePilot, a_job

pytestmark = pytest.mark.process

TOPICS = Topics()


@pytest.fixture
def grid(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[WireGrid]:
    """Return a grid whose server has a broker."""
    with running_server(tmp_path / "data", broker=mosquitto.url, heartbeat_s=0.1) as server:
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


async def wait_for_idle_slots(grid: WireGrid, listener: RecordingSubscriber) -> None:
    """Wait until the server knows of 100 idle slots; it may receive them later than the test, so jobs are repeated."""
    async with asyncio.timeout(30):
        await asyncio.to_thread(grid.submit, a_job())
        while read_probability(await next_message(listener, TOPICS.pool(""))) != pytest.approx(0.055):
            await asyncio.to_thread(grid.submit, a_job())


async def test_one_job_wakes_few_of_many_idle_slots(
    grid: WireGrid, listener: RecordingSubscriber, mosquitto: MosquittoServer
) -> None:
    pilot = await asyncio.to_thread(grid.start_pilot)
    async with broker_link(mosquitto, pilot.stamp) as (link, _):
        link.publish(status_of(pilot, idle_slots=100).message(TOPICS))
        await wait_for_idle_slots(grid, listener)


async def test_server_survives_hostile_messages_and_starts_on_them(
    grid: WireGrid, listener: RecordingSubscriber, mosquitto: MosquittoServer
) -> None:
    pilot, other = [await asyncio.to_thread(grid.start_pilot) for _ in range(2)]
    good = status_of(pilot, idle_slots=100).message(TOPICS)
    async with broker_link(mosquitto, "hostile") as (hostile, _):
        hostile.publish(replace(good, payload=good.payload.replace(b"100", b"Infinity")))
        hostile.publish(Message(TOPICS.node(other.stamp), b"[" * 50_000, retained=True))
        hostile.publish(Message(TOPICS.node("stranger"), b'{"idle_slots": ' + b"9" * 5000 + b"}", retained=True))
        hostile.publish(Message(TOPICS.node("large"), b"x" * 1_000_000, retained=True))
        for number in range(2000):
            hostile.publish(status_of(pilot, idle_slots=1).message(Topics(f"{TOPICS.prefix}/nodes/x{number}")))
            hostile.publish(replace(good, topic=TOPICS.node(f"stranger{number}")))
        await hostile.all_sent()
        await asyncio.to_thread(grid.server.stop)
        await asyncio.to_thread(grid.server.start)
        hostile.publish(good)
        await wait_for_idle_slots(grid, listener)
    lines = grid.server.log().splitlines()
    assert 1 <= sum("node message malformed" in line for line in lines) <= 4, "one line a minute of each process"
    assert not any('"level": "error"' in line for line in lines)


async def test_silent_pilot_with_a_will_is_lost_until_its_next_heartbeat(
    grid: WireGrid, listener: RecordingSubscriber, mosquitto: MosquittoServer
) -> None:
    pilot, forged, living = [await asyncio.to_thread(grid.start_pilot) for _ in range(3)]
    async with broker_link(mosquitto, "all of them") as (link, _):
        for each in (forged, living, pilot):
            link.publish(status_of(each, online=False).message(TOPICS))
        link.publish(status_of(forged).message(TOPICS))
        await next_message(listener, TOPICS.node(pilot.stamp))
        async with asyncio.timeout(40):
            while await asyncio.to_thread(state_of, grid, pilot) != "PILOT_STATE_LOST":
                await asyncio.to_thread(living.heartbeat)
    assert [state_of(grid, each) for each in (forged, living)] == ["PILOT_STATE_RUNNING"] * 2
    await asyncio.to_thread(pilot.heartbeat)
    assert state_of(grid, pilot) == "PILOT_STATE_RUNNING"


async def test_will_is_checked_after_the_database_was_away(
    mosquitto: MosquittoServer, postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    database = postgresql_server.new_database()
    url = database.render_as_string(hide_password=False)
    with running_server(tmp_path / "data", broker=mosquitto.url, heartbeat_s=0.1, database=url) as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot = await asyncio.to_thread(grid.start_pilot)
        async with broker_link(mosquitto, pilot.stamp) as (link, _):
            link.publish(status_of(pilot).message(TOPICS))
            await link.all_sent()
            await asyncio.to_thread(postgresql_server.refuse_connections, database)
            link.publish(status_of(pilot, online=False).message(TOPICS))
            await until(lambda: bool(failed_duties(server) & {"messages of nodes", "last wills"}))
            await asyncio.to_thread(postgresql_server.accept_connections, database)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(state_of, grid, pilot) != "PILOT_STATE_LOST":
                pass
        grid.close()
    postgresql_server.drop(database)


def failed_duties(server: RunningServer) -> set[str]:
    lines = map(json.loads, server.log().splitlines())
    return {line["duty"] for line in lines if line["event"] == "duty failed"}


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
