"""The MQTT publisher of a pilot on a real Mosquitto: wake-ups, node status and its end."""

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
from support.mosquitto import MosquittoServer, RecordingSubscriber, broker_link
from support.pilot_bench import BOOT_S, START

TOPICS = Topics()
SUBSCRIBED, OTHER, NEW = "a" * 64, "b" * 64, "c" * 64
NODE = NodeStatus("stamp1", "node1", "SITE/ce1/long")
SINCE = Now(START, BOOT_S)


@dataclass
class ConnectedPilot:
    """A connected publisher with its received events, and the other clients of the broker."""

    publisher: BrokerPublisher
    others: BrokerLink
    listener: RecordingSubscriber
    events: asyncio.Queue[BrokerEvent] = field(default_factory=asyncio.Queue)

    async def next(self) -> BrokerEvent:
        """Return the next event of the pilot."""
        async with asyncio.timeout(20):
            return await self.events.get()

    async def receives_none_of(self, *messages: Message) -> None:
        """Publish these messages and a poll request, and check that only the request arrives."""
        for message in (*messages, Message(TOPICS.poll(NODE.stamp), b"{}")):
            self.others.publish(message)
        assert await self.next() == ContactRequested()


@asynccontextmanager
async def connected_pilot(
    mosquitto: MosquittoServer, *pools: str, dice: Callable[[], float] = lambda: 0.5
) -> AsyncIterator[ConnectedPilot]:
    publisher = BrokerPublisher(parse_broker(mosquitto.url), NODE, dice)
    publisher.subscribe_pools(pools)
    async with broker_link(mosquitto, "others", TOPICS.all_nodes) as (others, listener):
        pilot = ConnectedPilot(publisher, others, listener)
        async with publisher.connected(pilot.events.put_nowait):
            assert await pilot.next() == BrokerChanged(connected=True, jitter=dice())
            yield pilot


@pytest.mark.parametrize("pool", [SUBSCRIBED, "", EVERY_POOL])
async def test_pilot_receives_wake_ups_of_its_pools_only(mosquitto: MosquittoServer, pool: str) -> None:
    async with connected_pilot(mosquitto, SUBSCRIBED) as pilot:
        pilot.others.publish(wake_up_message(TOPICS, pool, 1, 1.0))
        assert await pilot.next() == JobsAnnounced()
        await pilot.receives_none_of(wake_up_message(TOPICS, OTHER, 1, 1.0))


async def test_pilot_answers_wake_up_with_its_probability(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto, dice=lambda: 0.5) as pilot:
        await pilot.receives_none_of(wake_up_message(TOPICS, "", 1, 0.5))
        pilot.others.publish(wake_up_message(TOPICS, "", 1, 0.51))
        assert await pilot.next() == JobsAnnounced()


async def test_each_idle_slot_raises_the_probability(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto, dice=lambda: 0.5) as pilot:
        pilot.publisher.publish_slots((STATIC,), draining=False)
        await pilot.receives_none_of(wake_up_message(TOPICS, "", 1, 0.3))
        pilot.publisher.publish_slots((FREE, STATIC), draining=False)
        pilot.others.publish(wake_up_message(TOPICS, "", 1, 0.3))
        assert await pilot.next() == JobsAnnounced()


@pytest.mark.parametrize(
    "payload",
    [
        *(
            b"",
            b"[]",
            b"{nonsense",
            b'{"probability": 7}',
            b"\xff\xfe",
            b"[" * 50_000,
            b'{"probability": 1}' + b" " * 70_000,
        ),
        *(b'{"probability": %s}' % each for each in (b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b'"1"', b"[]")),
    ],
)
async def test_malformed_wake_up_is_ignored(mosquitto: MosquittoServer, payload: bytes) -> None:
    async with connected_pilot(mosquitto) as pilot:
        await pilot.receives_none_of(Message(TOPICS.pool(""), payload))


async def test_subscribed_pools_can_be_replaced(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto, SUBSCRIBED) as pilot:
        pilot.publisher.subscribe_pools([NEW])
        # A retained message is received on subscription.
        pilot.others.publish(replace(wake_up_message(TOPICS, NEW, 1, 1.0), retained=True))
        events = [await pilot.next() for _ in range(2)]
        assert JobsAnnounced() in events
        assert BrokerChanged(connected=True, jitter=0.5) in events, "earlier announcements may have been missed"
        await pilot.receives_none_of(wake_up_message(TOPICS, SUBSCRIBED, 1, 1.0))


async def test_pilot_of_many_pools_receives_only_their_wake_ups(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto, *(f"{number:064x}" for number in range(MAX_TOPICS))) as pilot:
        for pool in (f"{77:064x}", "", EVERY_POOL):
            pilot.others.publish(wake_up_message(TOPICS, pool, 1, 1.0))
            assert await pilot.next() == JobsAnnounced()
        await pilot.receives_none_of(wake_up_message(TOPICS, OTHER, 1, 1.0))


def a_slot(name: str, state: SlotState, activity: Activity, free_cpus: int, job_id: int = 0) -> Slot:
    key = AttemptKey(job_id, 1) if job_id else None
    amounts, free = Amounts(4, 1000, 100), Amounts(free_cpus, 300, 100)
    return Slot(name, state, activity, amounts, free, SINCE, SINCE, key, partitionable=name == "slot1")


FREE = a_slot("slot1", SlotState.UNCLAIMED, Activity.IDLE, 2)
FULL = a_slot("slot1", SlotState.UNCLAIMED, Activity.IDLE, 0)
BUSY = a_slot("slot1_1", SlotState.CLAIMED, Activity.BUSY, 0, job_id=7)
STATIC = a_slot("slot2", SlotState.UNCLAIMED, Activity.IDLE, 4)
OWNER = a_slot("slot3", SlotState.OWNER, Activity.IDLE, 4)


@pytest.mark.parametrize(
    ("slots", "idle"),
    [((FREE, BUSY), 1), ((FULL, BUSY), 0), ((FREE, STATIC), 2), ((STATIC, OWNER), 1), ((), 0)],
)
async def test_status_counts_idle_slots(mosquitto: MosquittoServer, slots: tuple[Slot, ...], idle: int) -> None:
    async with connected_pilot(mosquitto) as pilot:
        for draining, expected in ((False, idle), (True, 0)):
            pilot.publisher.publish_slots(slots, draining=draining)
            status = read_node_status(await pilot.listener.next())
            assert status is not None
            assert (status.idle_slots, len(status.slots)) == (expected, len(slots))


async def test_status_describes_each_slot(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto) as pilot:
        pilot.publisher.publish_slots((FREE, BUSY), draining=False)
        status = read_node_status(await pilot.listener.next())
        assert status is not None
        since = "2026-11-20T12:00:00+00:00"
        idle = {"state": "Unclaimed", "activity": "Idle", "cpus": 2, "memory_mib": 300, "job": None, "since": since}
        busy = {"state": "Claimed", "activity": "Busy", "cpus": 4, "memory_mib": 1000, "job": 7, "since": since}
        assert status.slots == ({"name": "slot1", **idle}, {"name": "slot1_1", **busy})


async def test_ended_pilot_clears_its_status(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto) as pilot:
        pilot.publisher.publish_slots((FREE,), draining=False)
        assert read_node_status(await pilot.listener.next())
    async with broker_link(mosquitto, "late", TOPICS.all_nodes) as (late, listener):
        late.publish(Message(TOPICS.node("marker"), b"{}"))
        assert (await listener.next()).topic == TOPICS.node("marker")


async def publish_and_fail(mosquitto: MosquittoServer) -> None:
    async with connected_pilot(mosquitto) as pilot:
        pilot.publisher.publish_slots((FREE,), draining=False)
        raise ValueError("a bug")


async def test_failed_pilot_leaves_an_offline_status(mosquitto: MosquittoServer) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await publish_and_fail(mosquitto)
    assert raised.group_contains(ValueError)
    async with broker_link(mosquitto, "late", TOPICS.all_nodes) as (_, listener):
        assert read_node_status(await listener.next()) == replace(NODE, online=False)
