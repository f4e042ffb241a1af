"""Links to a real broker for tests: what they hear waits until it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import parse_broker
from pilotage.mqtt.topics import Message
from support.mosquitto import MosquittoServer


@dataclass
class Ear:
    """Hears what a link brings."""

    messages: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    states: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)

    async def next(self) -> Message:
        """Return the next message."""
        async with asyncio.timeout(20):
            return await self.messages.get()

    async def connected(self, wanted: bool = True) -> None:
        """Return when the connection stands, or is broken."""
        async with asyncio.timeout(40):
            while await self.states.get() is not wanted:
                pass


@asynccontextmanager
async def linked(
    broker: MosquittoServer, name: str, *topics: str, will: Message | None = None
) -> AsyncIterator[tuple[BrokerLink, Ear]]:
    """Run a link for the time of the block."""
    ear = Ear()
    link = BrokerLink(parse_broker(broker.url), name, ear.messages.put_nowait, ear.states.put_nowait, will)
    link.subscribe(topics)
    task = asyncio.create_task(link.run())
    try:
        await ear.connected()
        yield link, ear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
