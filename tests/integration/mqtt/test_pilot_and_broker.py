"""Pilot processes that receive wake-ups through a broker, with a real server and a real Mosquitto."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage.mqtt.topics import Message, NodeStatus, Topics, read_node_status
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_server.core.identity import Role
from support.commands import run_pilot
from support.mosquitto import MosquittoServer, RecordingSubscriber, broker_link
from support.process_grid import PilotProcess, ProcessGrid, a_process_grid
from support.processes import until

pytestmark = pytest.mark.process

TOPICS = Topics()
RARELY_S = 3600
"""A pilot with this interval acts within minutes only after a wake-up."""

SETTABLE = "ENABLE_RUNTIME_CONFIG = True\nSETTABLE_ATTRS_ADMINISTRATOR = OnlyMulticore\n"


@pytest.fixture
def grid(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path, broker=mosquitto.url, heartbeat_s=RARELY_S) as grid:
        yield grid


@pytest.fixture
def user(grid: ProcessGrid) -> Iterator[Client]:
    with Client(grid.server.address, grid.server.token()) as client:
        yield client


@pytest.fixture
def operator(grid: ProcessGrid) -> Iterator[Client]:
    with Client(grid.server.address, grid.server.token(Role.OPERATOR, Role.ADMIN, owner="olga")) as client:
        yield client


@pytest.fixture
async def listener(mosquitto: MosquittoServer) -> AsyncIterator[RecordingSubscriber]:
    """Return a listener of the node status messages."""
    async with broker_link(mosquitto, "listener", TOPICS.all_nodes) as (_, listener):
        yield listener


@asynccontextmanager
async def a_pilot(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, **settings: Any
) -> AsyncIterator[PilotProcess]:
    """Start a pilot with one core and wait for its first status message.

    With one core, the request after a job finds nothing and the pilot becomes idle at once.
    """
    node = {"cpus": 1, "node_name": "node1"}
    async with grid.pilot(broker=mosquitto.url, idle_ask_s=RARELY_S, **node, **settings) as pilot:
        await next_status(pilot, listener)
        yield pilot


async def next_status(pilot: PilotProcess, listener: RecordingSubscriber) -> NodeStatus | None:
    """Return the next status of a pilot's node; None = the retained message is cleared."""
    while (message := await listener.next()).topic != TOPICS.node(pilot.stamp):
        pass
    return read_node_status(message)


async def run_job(user: Client, **description: Any) -> JobStatus:
    """Submit a job and return it after its end."""
    (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/true", **description)])).job_ids
    (job,) = await asyncio.to_thread(user.wait, [job_id], 30)
    assert job.state == "DONE", f"job {job_id} is {job.state}: {job.reason}"
    return job


async def wait_for_slots(pilot: PilotProcess, listener: RecordingSubscriber, *slots: str) -> None:
    """Wait until a pilot has published its slots in these activities."""
    shown: tuple[str, ...] = ()
    while shown != slots:
        status = await next_status(pilot, listener)
        assert status is not None
        shown = tuple(f"{slot['name']} {slot['activity']}" for slot in status.slots)


def state_of(operator: Client, pilot: PilotProcess) -> str:
    (found,) = (info for info in operator.pilots(ended=True) if info.stamp == pilot.stamp)
    return found.state


async def test_idle_pilot_runs_announced_jobs_at_once(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener):
        for _ in range(4):
            await run_job(user)


async def test_pilot_receives_jobs_of_new_pools(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener):
        await run_job(user)
        for memory in (500, 500, 501, 502, 500):
            await run_job(user, requirements={"Memory": memory})


async def test_pilot_publishes_its_slots_and_their_jobs(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client, tmp_path: Path
) -> None:
    async with grid.pilot(broker=mosquitto.url, node_name="node1", cpus=1, memory_mib=1000) as pilot:
        status = await next_status(pilot, listener)
        assert status is not None
        assert (status.stamp, status.node, status.queue, status.online) == (
            pilot.stamp,
            "node1",
            "SITE/ce01/long",
            True,
        )
        (slot,) = status.slots
        assert status.idle_slots == 1
        assert slot.items() >= {"name": "slot1", "state": "Unclaimed", "activity": "Idle", "cpus": 1}.items()
        assert slot["job"] is None
        (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/sleep", "600")])).job_ids
        while not any(info["job"] == job_id and info["activity"] == "Busy" for info in status.slots):
            status = await next_status(pilot, listener)
            assert status is not None
        assert status.idle_slots == 0
        assert [(info["name"], info["cpus"]) for info in status.slots] == [("slot1", 0), ("slot1_1", 1)]


async def test_restarted_broker_loses_no_pilot_and_killed_one_is_lost(
    mosquitto: MosquittoServer, tmp_path: Path, listener: RecordingSubscriber
) -> None:
    with a_process_grid(tmp_path, broker=mosquitto.url, heartbeat_s=1) as grid:
        token = grid.server.token(Role.OPERATOR, owner="olga")
        with Client(grid.server.address, token) as operator:
            async with AsyncExitStack() as started:
                pilots = [await started.enter_async_context(a_pilot(grid, mosquitto, listener)) for _ in range(5)]
                await until(lambda: states_of(operator) == {"RUNNING": 5})
                await asyncio.to_thread(mosquitto.stop, signal.SIGTERM)
                await listener.connected(False)
                await asyncio.to_thread(mosquitto.start)
                await listener.connected()
                back = {pilot.stamp for pilot in pilots}
                while back:
                    status = read_node_status(await listener.next())
                    assert status is not None
                    back -= {status.stamp} if status.online else set()
                pilots[0].kill()
                # Whatever the broker published at its end is older than the killed pilot's will.
                await until(lambda: "LOST" in states_of(operator))
                assert states_of(operator) == {"RUNNING": 4, "LOST": 1}
                assert state_of(operator, pilots[0]) == "LOST"
                async with broker_link(mosquitto, "late", TOPICS.node(pilots[0].stamp)) as (_, late):
                    status = await next_status(pilots[0], late)
                assert status == NodeStatus(pilots[0].stamp, "node1", "SITE/ce01/long", online=False)


def states_of(operator: Client) -> Counter[str]:
    """Return the number of pilots in each state."""
    return Counter(info.state for info in operator.pilots(ended=True))


async def test_ended_pilot_leaves_no_retained_message(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, operator: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener, max_idle_s=1) as pilot:
        assert (await pilot.ends())[0] == 0
        while (status := await next_status(pilot, listener)) is not None:
            assert status.online
        assert state_of(operator, pilot) == "ENDED"
    async with broker_link(mosquitto, "late", TOPICS.all_nodes) as (late, late_listener):
        late.publish(Message(TOPICS.node("marker"), b"{}"))
        assert (await late_listener.next()).topic == TOPICS.node("marker"), "a message is still retained"


async def test_jobs_run_during_and_after_a_broker_outage(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener) as pilot:
        await run_job(user)
        mosquitto.stop()
        for _ in range(3):
            await run_job(user)
        mosquitto.start()
        async with broker_link(mosquitto, "late", TOPICS.node(pilot.stamp)) as (_, late):
            await next_status(pilot, late)
        for _ in range(3):
            await run_job(user)


async def test_pilot_works_without_reachable_broker(grid: ProcessGrid, user: Client) -> None:
    async with grid.pilot(broker="mqtt://127.0.0.1:1", idle_ask_s=RARELY_S, max_idle_s=2) as pilot:
        await run_job(user)
        assert (await pilot.ends())[0] == 0


async def test_idle_pilot_receives_drain_at_once(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client, operator: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener) as pilot:
        await run_job(user)
        await wait_for_slots(pilot, listener, "slot1 Idle")
        await asyncio.to_thread(operator.drain_pilots, [pilot.stamp], reason="maintenance")
        code, last = await pilot.ends()
        assert (code, last["reason"]) == (0, "maintenance")


async def test_busy_pilot_receives_job_removal_at_once(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener) as pilot:
        (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/sleep", "600")])).job_ids
        await until(lambda: bool(pilot.payload_pids(job_id)))
        await wait_for_slots(pilot, listener, "slot1 Idle", "slot1_1 Busy")
        await asyncio.to_thread(user.remove, [job_id], reason="not needed")
        await until(lambda: not pilot.payload_pids(job_id))


async def test_idle_pilot_receives_attribute_changes(
    grid: ProcessGrid,
    mosquitto: MosquittoServer,
    listener: RecordingSubscriber,
    user: Client,
    operator: Client,
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.conf"
    await asyncio.to_thread(policy.write_text, SETTABLE)
    async with a_pilot(grid, mosquitto, listener, policy=str(policy)) as pilot:
        await run_job(user)
        await wait_for_slots(pilot, listener, "slot1 Idle")
        await asyncio.to_thread(operator.set_node_attributes, [("SITE", "node1")], {"OnlyMulticore": "True"})
        await until(lambda: bool(operator.slots("OnlyMulticore")))


async def test_full_pilot_receives_attribute_changes(
    grid: ProcessGrid,
    mosquitto: MosquittoServer,
    listener: RecordingSubscriber,
    user: Client,
    operator: Client,
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.conf"
    await asyncio.to_thread(policy.write_text, SETTABLE)
    async with a_pilot(grid, mosquitto, listener, policy=str(policy)) as pilot:
        await asyncio.to_thread(user.submit, [JobDescription("/bin/sleep", "600")])
        await wait_for_slots(pilot, listener, "slot1 Idle", "slot1_1 Busy")
        for expression in ("True", "False", "True"):
            await asyncio.to_thread(operator.set_node_attributes, [("SITE", "node1")], {"OnlyMulticore": expression})
            await until(partial(_shows, operator, f"OnlyMulticore =?= {expression}"))


async def test_full_pilot_reports_its_slots_on_request(
    grid: ProcessGrid, mosquitto: MosquittoServer, listener: RecordingSubscriber, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, listener) as pilot:
        await asyncio.to_thread(user.submit, [JobDescription("/bin/sleep", "600")])
        await wait_for_slots(pilot, listener, "slot1 Idle", "slot1_1 Busy")
        asked = await asyncio.to_thread(user.request_reports, ("SITE", "node1"))
        await until(lambda: all(slot.answered for slot in user.slots(node=("SITE", "node1"))))
    assert list(asked.pilot_stamps) == [pilot.stamp]


def _shows(operator: Client, constraint: str) -> bool:
    return len(operator.slots(constraint)) == 2


def test_pilot_with_broker_needs_the_mqtt_package(tmp_path: Path) -> None:
    code, lines, leftovers = run_pilot(tmp_path, "aiomqtt", broker="mqtt://broker.example.org")
    assert (code, leftovers) == (2, [])
    assert lines[-1].startswith("pilotage-pilot: broker: needs the Python package aiomqtt")


def test_pilot_without_broker_needs_no_mqtt_package(tmp_path: Path) -> None:
    code, lines, leftovers = run_pilot(tmp_path, "aiomqtt", "paho")
    assert (code, leftovers) == (3, [])
    assert "the server could not be reached" in lines[-1]


def test_error_of_invalid_broker_url_hides_the_password(tmp_path: Path) -> None:
    code, lines, leftovers = run_pilot(tmp_path, broker="http://pilot:PASSWORD@broker.example.org")
    assert (code, leftovers) == (2, [])
    assert "broker: is not a URL such as mqtt://host:1883" in lines[-1]
    assert "PASSWORD" not in "".join(lines)
