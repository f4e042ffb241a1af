"""Publishes the node's state on an MQTT broker, receives wake-ups, and leaves a last will."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from pilotage.errors import InvalidInputError
from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import Broker, BrokerLogin
from pilotage.mqtt.topics import EVERY_POOL, WITHOUT_POOL, Message, NodeStatus, erase_message, read_probability
from pilotage.telemetry import LimitedWarning
from pilotage_pilot.core.events import BrokerChanged, BrokerEvent, ContactRequested, JobsAnnounced
from pilotage_pilot.core.instructions import Slot
from pilotage_pilot.core.slots.states import SlotState

log = structlog.get_logger()

MAX_TOPICS = 1000
"""A pilot with more pools subscribes to all pools and filters the messages itself."""

CLOSE_TIMEOUT_S = 3.0
"""How long a pilot that ends waits until the broker has accepted its last message."""


class BrokerPublisher:
    """Publishes the state of one pilot's node; `dice` (0 to 1) decide which wake-ups are passed on.

    `get_login` gives the pilot's login, unless the URL of the broker has one.
    """

    def __init__(
        self,
        broker: Broker,
        node: NodeStatus,
        dice: Callable[[], float] = random.random,
        get_login: Callable[[], Awaitable[BrokerLogin | None]] | None = None,
    ) -> None:
        self._topics = broker.topics
        self._node = node
        self._dice = dice
        self._will = replace(node, online=False).message(broker.topics)
        name = broker.topics.pilot_client_id(node.stamp)
        asks = get_login if broker.username is None else None
        self._link = BrokerLink(broker, name, self._received, self._connection, self._will, asks)
        self._connected = False
        self._pools: frozenset[str] = frozenset()
        self._idle = 0
        self._warn_malformed = LimitedWarning("wake-up not understood")
        self._publish_event: Callable[[BrokerEvent], None] = lambda _: None
        self.subscribe_pools(())

    @asynccontextmanager
    async def connected(self, publish: Callable[[BrokerEvent], None]) -> AsyncIterator[None]:
        """Keep the connection during the block; after an error the node stays on the broker as lost."""
        self._publish_event = publish
        last_message = self._will
        async with asyncio.TaskGroup() as tasks:
            link = tasks.create_task(self._link.run())
            try:
                yield
                last_message = erase_message(self._topics, self._node.stamp)
            finally:
                self._link.publish(last_message)
                if self._connected:
                    try:
                        async with asyncio.timeout(CLOSE_TIMEOUT_S):
                            await self._link.all_sent()
                    except TimeoutError:
                        log.warning("last message not accepted by the broker", timeout_s=CLOSE_TIMEOUT_S)
                link.cancel()

    def subscribe_pools(self, pool_ids: Iterable[str]) -> None:
        """Subscribe to jobs of these pools, to jobs without a pool, and to changes of eligibility."""
        self._pools = frozenset(self._topics.pool(each) for each in (*pool_ids, WITHOUT_POOL, EVERY_POOL))
        topics = self._pools if len(self._pools) <= MAX_TOPICS else {self._topics.pool("+")}
        self._link.subscribe({*topics, self._topics.poll(self._node.stamp)})

    def publish_slots(self, slots: Iterable[Slot], *, draining: bool) -> None:
        """Publish the state of the slots; a draining pilot has no idle ones."""
        reported = tuple(slots)
        self._idle = 0 if draining else sum(map(_is_idle, reported))
        status = replace(self._node, idle_slots=self._idle, slots=tuple(map(_slot_report, reported)))
        self._link.publish(status.message(self._topics))

    def _connection(self, connected: bool) -> None:
        self._connected = connected
        self._publish_event(BrokerChanged(connected, self._dice()))

    def _received(self, message: Message) -> None:
        if message.topic == self._topics.poll(self._node.stamp):
            self._publish_event(ContactRequested())
        elif message.topic in self._pools and self._is_meant(message):
            self._publish_event(JobsAnnounced())

    def _is_meant(self, message: Message) -> bool:
        try:
            return self._dice() < read_probability(message, self._idle)
        except InvalidInputError as error:
            self._warn_malformed(topic=message.topic, why=str(error))
            return False


def _is_idle(slot: Slot) -> bool:
    return slot.state is SlotState.UNCLAIMED and (not slot.partitionable or slot.free.cpus >= 1)


def _slot_report(slot: Slot) -> Mapping[str, Any]:
    shown = slot.free if slot.partitionable else slot.amounts
    return {
        "name": slot.name,
        "state": slot.state,
        "activity": slot.activity,
        "cpus": shown.cpus,
        "memory_mib": shown.memory_mib,
        "job": None if slot.key is None else slot.key.job_id,
        "since": slot.since.utc.isoformat(),
    }
