"""A pilot's voice on a real Mosquitto: which wake-ups it answers, what it tells, and its last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import parse_broker
from pilotage.mqtt.topics import EVERY_POOL, Message, NodeStatus, Topics, read_node_status, wake_up_message
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.events import BrokerChanged, BrokerEvent, ContactRequested, JobsAnnounced
from pilotage_pilot.core.instructions import Slot
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.slots.states import Activity, SlotState
from pilotage_pilot.link.mqtt import MAX_TOPICS, BrokerPublisher
from support.mosquitto import Ear, MosquittoServer, linked
from support.pilot_bench import BOOT_S, START

TOPICS = Topics()
MINE, OTHER, NEW = "a" * 64, "b" * 64, "c" * 64
NODE = NodeStatus("stamp1", "node1", "SITE/ce1/long")
THEN = Now(START, BOOT_S)


@dataclass
class Speaking:
    """A pilot's voice that speaks, what it has heard, and the others on the broker."""

    voice: BrokerPublisher
    others: BrokerLink
    ear: Ear
    events: asyncio.Queue[BrokerEvent] = field(default_factory=asyncio.Queue)

    async def next(self) -> BrokerEvent:
        """Return what it hears next."""
        async with asyncio.timeout(20):
            return await self.events.get()

    async def hears_nothing_of(self, *messages: Message) -> None:
        """Return when it has heard what came after these messages, and nothing before."""
        for message in (*messages, Message(TOPICS.poll(NODE.stamp), b"{}")):
            self.others.publish(message)
        assert await self.next() == ContactRequested()


@asynccontextmanager
async def speaking(
    mosquitto: MosquittoServer, *pools: str, dice: Callable[[], float] = lambda: 0.5
) -> AsyncIterator[Speaking]:
    voice = BrokerPublisher(parse_broker(mosquitto.url), NODE, dice)
    voice.subscribe_pools(pools)
    async with linked(mosquitto, "others", TOPICS.all_nodes) as (others, ear):
        pilot = Speaking(voice, others, ear)
        async with voice.connected(pilot.events.put_nowait):
            assert await pilot.next() == BrokerChanged(connected=True, jitter=dice())
            yield pilot


@pytest.mark.parametrize("pool", [MINE, "", EVERY_POOL])
async def test_a_pilot_hears_of_jobs_of_its_pools_of_those_without_one_and_of_changes(
    mosquitto: MosquittoServer, pool: str
) -> None:
    async with speaking(mosquitto, MINE) as pilot:
        pilot.others.publish(wake_up_message(TOPICS, pool, 1, 1.0))
        assert await pilot.next() == JobsAnnounced()
        await pilot.hears_nothing_of(wake_up_message(TOPICS, OTHER, 1, 1.0))


async def test_a_wake_up_is_answered_with_its_probability(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto, dice=lambda: 0.5) as pilot:
        await pilot.hears_nothing_of(wake_up_message(TOPICS, "", 1, 0.5))
        pilot.others.publish(wake_up_message(TOPICS, "", 1, 0.51))
        assert await pilot.next() == JobsAnnounced()


async def test_each_idle_slot_is_a_reason_to_answer(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto, dice=lambda: 0.5) as pilot:
        pilot.voice.publish_slots((STATIC,), draining=False)
        await pilot.hears_nothing_of(wake_up_message(TOPICS, "", 1, 0.3))
        pilot.voice.publish_slots((FREE, STATIC), draining=False)
        pilot.others.publish(wake_up_message(TOPICS, "", 1, 0.3))
        assert await pilot.next() == JobsAnnounced()


@pytest.mark.parametrize("broken", [b"", b"[]", b"{nonsense", b'{"probability": 7}', b"\xff\xfe"])
async def test_a_wake_up_that_is_none_is_left_alone(mosquitto: MosquittoServer, broken: bytes) -> None:
    async with speaking(mosquitto) as pilot:
        await pilot.hears_nothing_of(Message(TOPICS.pool(""), broken))


async def test_a_pilot_hears_of_its_new_pools_and_of_its_old_ones_no_more(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto, MINE) as pilot:
        pilot.voice.subscribe_pools([NEW])
        pilot.others.publish(
            replace(wake_up_message(TOPICS, NEW, 1, 1.0), retained=True)
        )  # is heard when it is subscribed to
        heard = [await pilot.next() for _ in range(2)]
        assert JobsAnnounced() in heard
        assert BrokerChanged(connected=True, jitter=0.5) in heard, "what was announced until then is to be asked for"
        await pilot.hears_nothing_of(wake_up_message(TOPICS, MINE, 1, 1.0))


async def test_a_pilot_of_very_many_pools_hears_of_them_and_of_no_others(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto, *(f"{number:064x}" for number in range(MAX_TOPICS))) as pilot:
        for pool in (f"{77:064x}", "", EVERY_POOL):
            pilot.others.publish(wake_up_message(TOPICS, pool, 1, 1.0))
            assert await pilot.next() == JobsAnnounced()
        await pilot.hears_nothing_of(wake_up_message(TOPICS, OTHER, 1, 1.0))


def a_slot(name: str, state: SlotState, activity: Activity, free_cpus: int, job_id: int = 0) -> Slot:
    key = AttemptKey(job_id, 1) if job_id else None
    amounts, free = Amounts(4, 1000, 100), Amounts(free_cpus, 300, 100)
    return Slot(name, state, activity, amounts, free, THEN, THEN, key, partitionable=name == "slot1")


FREE = a_slot("slot1", SlotState.UNCLAIMED, Activity.IDLE, 2)
FULL = a_slot("slot1", SlotState.UNCLAIMED, Activity.IDLE, 0)
BUSY = a_slot("slot1_1", SlotState.CLAIMED, Activity.BUSY, 0, job_id=7)
STATIC = a_slot("slot2", SlotState.UNCLAIMED, Activity.IDLE, 4)
BARRED = a_slot("slot3", SlotState.OWNER, Activity.IDLE, 4)


@pytest.mark.parametrize(
    ("slots", "idle"),
    [((FREE, BUSY), 1), ((FULL, BUSY), 0), ((FREE, STATIC), 2), ((STATIC, BARRED), 1), ((), 0)],
)
async def test_a_node_tells_how_many_of_its_slots_would_take_a_job(
    mosquitto: MosquittoServer, slots: tuple[Slot, ...], idle: int
) -> None:
    async with speaking(mosquitto) as pilot:
        for draining, told in ((False, idle), (True, 0)):
            pilot.voice.publish_slots(slots, draining=draining)
            news = read_node_status(await pilot.ear.next())
            assert news is not None
            assert (news.idle_slots, len(news.slots)) == (told, len(slots))


async def test_a_slot_is_told_with_what_of_it_there_is_to_see(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto) as pilot:
        pilot.voice.publish_slots((FREE, BUSY), draining=False)
        news = read_node_status(await pilot.ear.next())
        assert news is not None
        since = "2026-11-20T12:00:00+00:00"
        idle = {"state": "Unclaimed", "activity": "Idle", "cpus": 2, "memory_mib": 300, "job": None, "since": since}
        busy = {"state": "Claimed", "activity": "Busy", "cpus": 4, "memory_mib": 1000, "job": 7, "since": since}
        assert news.slots == ({"name": "slot1", **idle}, {"name": "slot1_1", **busy})


async def test_a_pilot_that_ends_takes_its_node_off_the_broker(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto) as pilot:
        pilot.voice.publish_slots((FREE,), draining=False)
        assert read_node_status(await pilot.ear.next())
    async with linked(mosquitto, "late", TOPICS.all_nodes) as (late, ear):
        late.publish(Message(TOPICS.node("marker"), b"{}"))
        assert (await ear.next()).topic == TOPICS.node("marker")


async def fail(mosquitto: MosquittoServer) -> None:
    async with speaking(mosquitto) as pilot:
        pilot.voice.publish_slots((FREE,), draining=False)
        raise ValueError("a fault of its own")


async def test_a_pilot_that_fails_leaves_its_node_as_lost(mosquitto: MosquittoServer) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await fail(mosquitto)
    assert raised.group_contains(ValueError)
    async with linked(mosquitto, "late", TOPICS.all_nodes) as (_, ear):
        assert read_node_status(await ear.next()) == replace(NODE, online=False)
