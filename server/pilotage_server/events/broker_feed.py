"""The server's side of the broker: wake-ups and commands go out, nodes and last wills come in."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from pilotage.broker import Broker
from pilotage.broker_link import BrokerLink
from pilotage.topics import Message, erased
from pilotage_server.events.announcements import Announcements
from pilotage_server.events.nodes import KnownNodes
from pilotage_server.operations.broken_connections import connections_lost, stamps_over
from pilotage_server.rpc.loop_calls import in_event_loop
from pilotage_server.rpc.transactions import Transactions

log = structlog.get_logger()


class BrokerFeed:
    """Speaks for one server; `name` is its own on the broker."""

    def __init__(self, broker: Broker, name: str, transactions: Transactions) -> None:
        self._topics = broker.topics
        self._transactions = transactions
        self._nodes = KnownNodes(broker.topics)
        self._news = asyncio.Event()
        self._link = BrokerLink(broker, name, self._heard)
        self._link.subscribe([broker.topics.all_nodes])
        self._announcements = Announcements(transactions.world, broker.topics, self._nodes, self._link.publish)
        self._listen_to_world()

    def _listen_to_world(self) -> None:
        world, said = self._transactions.world, self._announcements
        world.on_enqueued.append(in_event_loop(said.jobs_arrived))
        world.on_commands.append(in_event_loop(said.pilot_called))
        world.on_reach_changed.append(in_event_loop(said.everything_changed))

    async def run(self) -> None:
        """Keep the connection, and mark pilots as lost whose last will comes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.run())
            tasks.create_task(self._mark_lost())

    def _heard(self, message: Message) -> None:
        self._nodes.heard(message)
        self._news.set()

    async def _mark_lost(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if wills := self._nodes.take_lost():
                lost = await self._transactions.write(partial(connections_lost, stamps=wills))
                for stamp in lost:
                    log.warning("pilot lost", pilot_stamp=stamp, why="its last will was heard")

    async def forget_ended(self) -> None:
        """Take the nodes of pilots that are over off the broker."""
        stamps = self._nodes.stamps()
        if stamps:
            over = await self._transactions.read(partial(stamps_over, stamps=stamps))
            for stamp in over:
                self._link.publish(erased(self._topics, stamp))
