"""Pilots as people start them that hear of jobs through a broker. Real server, real Mosquitto, real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage.mqtt.topics import Message, NodeStatus, Topics, read_node_status
from pilotage.v1 import pilot_service_pb2
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_server.core.identity import Role
from support.mosquitto import Ear, MosquittoServer, linked
from support.process_grid import PilotProcess, ProcessGrid, a_process_grid, read_text
from support.processes import until

pytestmark = pytest.mark.process

TOPICS = Topics()
SELDOM_S = 3600
"""Whatever a pilot does within minutes that asks so seldom, it was called for."""

SETTABLE = "ENABLE_RUNTIME_CONFIG = True\nSETTABLE_ATTRS_ADMINISTRATOR = OnlyMulticore\n"


@pytest.fixture
def grid(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path, broker=mosquitto.url, heartbeat_s=SELDOM_S) as grid:
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
async def ear(mosquitto: MosquittoServer) -> AsyncIterator[Ear]:
    """Return who hears what pilots say of their nodes."""
    async with linked(mosquitto, "ear", TOPICS.all_nodes) as (_, ear):
        yield ear


@asynccontextmanager
async def a_pilot(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, **settings: Any
) -> AsyncIterator[PilotProcess]:
    """Start a pilot, and go on when the broker has heard of it.

    It has one core, so that with the end of a job it asks in vain and rests at once.
    """
    node = {"cpus": 1, "node_name": "node1"}
    async with grid.pilot(broker=mosquitto.url, idle_ask_s=SELDOM_S, **node, **settings) as pilot:
        await news_of(pilot, ear)
        yield pilot


async def news_of(pilot: PilotProcess, ear: Ear) -> NodeStatus | None:
    """Return the next news of a pilot's node; None = it is taken off the broker."""
    while (message := await ear.next()).topic != TOPICS.node(pilot.stamp):
        pass
    return read_node_status(message)


async def run_job(user: Client, **description: Any) -> JobStatus:
    """Submit a job, and return it when it has ended."""
    (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/true", **description)])).job_ids
    (job,) = await asyncio.to_thread(user.wait, [job_id], 30)
    assert job.state == "DONE", f"job {job_id} is {job.state}: {job.reason}"
    return job


async def shows(pilot: PilotProcess, ear: Ear, *slots: str) -> None:
    """Return when a pilot has told that its slots are like this, and so has nothing more to tell of them."""
    shown: tuple[str, ...] = ()
    while shown != slots:
        news = await news_of(pilot, ear)
        assert news is not None
        shown = tuple(f"{slot['name']} {slot['activity']}" for slot in news.slots)


def state_of(operator: Client, pilot: PilotProcess) -> str:
    (found,) = (each for each in operator.pilots(ended=True) if each.stamp == pilot.stamp)
    return pilot_service_pb2.PilotState.Name(found.state).removeprefix("PILOT_STATE_")


async def test_a_pilot_that_rests_runs_each_job_as_soon_as_it_is_announced(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear):
        for _ in range(4):
            await run_job(user)


async def test_jobs_of_a_pool_that_is_new_since_the_pilot_came_are_heard_of_too(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear):
        await run_job(user)
        for memory in (500, 500, 501, 502, 500):
            await run_job(user, requirements={"Memory": memory})


async def test_a_node_is_told_with_its_slots_and_what_they_work_on(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client, tmp_path: Path
) -> None:
    async with grid.pilot(broker=mosquitto.url, node_name="node1", cpus=1, memory_mib=1000) as pilot:
        told = await news_of(pilot, ear)
        assert told is not None
        assert (told.stamp, told.node, told.queue, told.online) == (pilot.stamp, "node1", "SITE/ce01/long", True)
        (slot,) = told.slots
        assert told.idle_slots == 1
        assert slot.items() >= {"name": "slot1", "state": "Unclaimed", "activity": "Idle", "cpus": 1}.items()
        assert slot["job"] is None
        (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/sleep", "600")])).job_ids
        while not any(each["job"] == job_id and each["activity"] == "Busy" for each in told.slots):
            told = await news_of(pilot, ear)
            assert told is not None
        assert told.idle_slots == 0
        assert [(each["name"], each["cpus"]) for each in told.slots] == [("slot1", 0), ("slot1_1", 1)]


async def test_a_pilot_that_is_killed_is_lost_at_once_for_the_server_and_for_all_who_look(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, operator: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear) as pilot:
        await until(lambda: state_of(operator, pilot) == "RUNNING")
        pilot.process.kill()
        await until(lambda: state_of(operator, pilot) == "LOST")
        async with linked(mosquitto, "late", TOPICS.node(pilot.stamp)) as (_, late):
            told = await news_of(pilot, late)
        assert told == NodeStatus(pilot.stamp, "node1", "SITE/ce01/long", online=False)


async def test_a_pilot_that_ends_leaves_nothing_on_the_broker_and_is_never_taken_for_lost(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, operator: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear, max_idle_s=1) as pilot:
        assert (await pilot.ends())[0] == 0
        while (told := await news_of(pilot, ear)) is not None:
            assert told.online
        assert state_of(operator, pilot) == "ENDED"
    async with linked(mosquitto, "late", TOPICS.all_nodes) as (late, late_ear):
        late.publish(Message(TOPICS.node("marker"), b"{}"))
        assert (await late_ear.next()).topic == TOPICS.node("marker"), "something is retained"


async def test_jobs_run_while_the_broker_is_away_and_when_it_is_back(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear) as pilot:
        await run_job(user)
        mosquitto.stop()
        for _ in range(3):
            await run_job(user)
        mosquitto.start()
        async with linked(mosquitto, "late", TOPICS.node(pilot.stamp)) as (_, late):
            await news_of(pilot, late)
        for _ in range(3):
            await run_job(user)


async def test_a_pilot_whose_broker_never_was_there_works_and_ends_as_one_without(
    grid: ProcessGrid, user: Client
) -> None:
    async with grid.pilot(broker="mqtt://127.0.0.1:1", idle_ask_s=SELDOM_S, max_idle_s=2) as pilot:
        await run_job(user)
        assert (await pilot.ends())[0] == 0


async def test_a_pilot_that_rests_hears_at_once_that_it_is_to_end(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client, operator: Client
) -> None:
    async with a_pilot(grid, mosquitto, ear) as pilot:
        await run_job(user)
        await shows(pilot, ear, "slot1 Idle")
        await asyncio.to_thread(operator.drain_pilots, [pilot.stamp], reason="maintenance")
        code, last = await pilot.ends()
        assert (code, last["reason"]) == (0, "maintenance")


async def test_a_pilot_that_works_hears_at_once_what_it_is_to_stop(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client, tmp_path: Path
) -> None:
    async with a_pilot(grid, mosquitto, ear) as pilot:
        mark = tmp_path / "pid"
        script = f"'echo $$ > {mark}; exec sleep 600'"
        (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/sh", f"-c {script}")])).job_ids
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"))
        await shows(pilot, ear, "slot1 Idle", "slot1_1 Busy")
        process = Path("/proc") / read_text(mark).strip()
        await asyncio.to_thread(user.remove, [job_id], reason="not needed")
        await until(lambda: not process.exists())


async def test_an_attribute_that_an_operator_sets_reaches_a_pilot_that_rests(
    grid: ProcessGrid, mosquitto: MosquittoServer, ear: Ear, user: Client, operator: Client, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.conf"
    await asyncio.to_thread(policy.write_text, SETTABLE)
    async with a_pilot(grid, mosquitto, ear, policy=str(policy)) as pilot:
        await run_job(user)
        await shows(pilot, ear, "slot1 Idle")
        await asyncio.to_thread(operator.set_node_attributes, [("SITE", "node1")], {"OnlyMulticore": "True"})
        await until(lambda: bool(operator.slots("OnlyMulticore")))
