"""The voice of a pilot on an MQTT broker: it tells its node and hears of jobs, and leaves a last will."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from pilotage.broker import Broker
from pilotage.broker_link import BrokerLink
from pilotage.errors import InvalidInputError
from pilotage.topics import EVERY_POOL, WITHOUT_POOL, Message, NodeNews, erased, read_probability
from pilotage_pilot.core.broker_events import AskWanted, BrokerChanged, BrokerEvent, JobsAnnounced
from pilotage_pilot.core.slot_states import SlotState
from pilotage_pilot.core.slots import Slot

log = structlog.get_logger()

MOST_TOPICS = 1000
"""Whoever has more pools than this hears of all there are, and leaves out those of others itself."""

LAST_WORD_S = 3.0
"""So long a pilot that ends waits for the broker to take its last word."""


class BrokerVoice:
    """Speaks for one pilot, whose node `node` tells of; `dice` (0 to 1) decide which wake-ups are answered."""

    def __init__(self, broker: Broker, node: NodeNews, dice: Callable[[], float] = random.random) -> None:
        self._topics = broker.topics
        self._node = node
        self._dice = dice
        self._will = replace(node, online=False).message(broker.topics)
        self._link = BrokerLink(broker, f"pilotage-pilot-{node.stamp}", self._heard, self._connection, self._will)
        self._connected = False
        self._pools: frozenset[str] = frozenset()
        self._idle = 0
        self._hear: Callable[[BrokerEvent], None] = lambda _: None
        self.know_pools(())

    @asynccontextmanager
    async def speaking(self, hear: Callable[[BrokerEvent], None]) -> AsyncIterator[None]:
        """Keep the connection for the time of the block; its end by an error leaves the node on the broker, lost."""
        self._hear = hear
        last_word = self._will
        async with asyncio.TaskGroup() as tasks:
            link = tasks.create_task(self._link.run())
            try:
                yield
                last_word = erased(self._topics, self._node.stamp)
            finally:
                await self._say_last(last_word)
                link.cancel()

    async def _say_last(self, message: Message) -> None:
        self._link.publish(message)
        if self._connected:
            try:
                async with asyncio.timeout(LAST_WORD_S):
                    await self._link.all_sent()
            except TimeoutError:
                log.warning("the broker has not taken the last word of the pilot", timeout_s=LAST_WORD_S)

    def know_pools(self, pool_ids: Iterable[str]) -> None:
        """Hear of jobs of these pools from now on, of those without one, and of changes of what may go where."""
        self._pools = frozenset(self._topics.pool(each) for each in (*pool_ids, WITHOUT_POOL, EVERY_POOL))
        heard = self._pools if len(self._pools) <= MOST_TOPICS else {self._topics.pool("+")}
        self._link.subscribe({*heard, self._topics.ask(self._node.stamp)})

    def tell_slots(self, slots: Iterable[Slot], *, draining: bool) -> None:
        """Tell how the slots are; those of a pilot that drains wait for no jobs."""
        told = tuple(slots)
        self._idle = 0 if draining else sum(map(_is_idle, told))
        news = replace(self._node, idle_slots=self._idle, slots=tuple(map(_said_of, told)))
        self._link.publish(news.message(self._topics))

    def _connection(self, connected: bool) -> None:
        self._connected = connected
        self._hear(BrokerChanged(connected, self._dice()))

    def _heard(self, message: Message) -> None:
        if message.topic == self._topics.ask(self._node.stamp):
            self._hear(AskWanted())
        elif message.topic in self._pools and self._is_meant(message):
            self._hear(JobsAnnounced())

    def _is_meant(self, message: Message) -> bool:
        try:
            return self._dice() < read_probability(message, self._idle)
        except InvalidInputError as error:
            log.warning("wake-up not understood", topic=message.topic, why=str(error))
            return False


def _is_idle(slot: Slot) -> bool:
    return slot.state is SlotState.UNCLAIMED and (not slot.partitionable or slot.free.cpus >= 1)


def _said_of(slot: Slot) -> Mapping[str, Any]:
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
