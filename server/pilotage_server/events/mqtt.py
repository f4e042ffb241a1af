"""The server's side of the MQTT broker: wake-ups and commands go out, node states and last wills come in.

Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from pilotage.errors import InvalidInputError
from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import Broker
from pilotage.mqtt.topics import (
    EVERY_POOL,
    Message,
    NodeStatus,
    Topics,
    erase_message,
    read_node_status,
    wake_up_message,
)
from pilotage_server.core.matching.demand import answer_probability
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.pilots.pilots import ended_stamps, mark_disconnected
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.dispatch import in_event_loop
from pilotage_server.rpc.framework.transactions import Transactions

log = structlog.get_logger()


class KnownNodes:
    """The nodes of which the broker has messages."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._nodes: dict[str, NodeStatus] = {}
        self._lost: set[str] = set()

    def apply(self, message: Message) -> None:
        """Apply a node's message."""
        stamp = self._topics.stamp_of(message.topic)
        if stamp is None:
            return
        try:
            state = read_node_status(message)
        except InvalidInputError as error:
            log.warning("node message malformed", topic=message.topic, why=str(error))
            return
        self._lost.discard(stamp)
        if state is None:
            self._nodes.pop(stamp, None)
            return
        self._nodes[stamp] = state
        if not state.online:
            self._lost.add(stamp)

    def take_lost(self) -> frozenset[str]:
        """Return the stamps of pilots whose last will has arrived since the last call."""
        lost, self._lost = frozenset(self._lost), set()
        return lost

    def stamps(self) -> frozenset[str]:
        """Return the stamps of all pilots of which the broker has messages."""
        return frozenset(self._nodes)

    def idle_slots(self) -> Counter[str]:
        """Return the number of idle slots by queue."""
        idle: Counter[str] = Counter()
        for node in self._nodes.values():
            if node.online:
                idle[node.queue] += node.idle_slots
        return idle


BATCH_S = 0.02
"""New jobs are collected for this time: a submission of a thousand jobs is one message a pool."""

NEW_POOL_S = 900.0
"""For this time a new pool's jobs are announced to all pilots: older pilots have not subscribed to the pool yet."""


class Announcements:
    """Publishes wake-ups for new jobs to the pilots of their pools."""

    def __init__(
        self, state: ServerState, topics: Topics, nodes: KnownNodes, publish: Callable[[Message], None]
    ) -> None:
        self._state = state
        self._topics = topics
        self._nodes = nodes
        self._publish = publish
        self._jobs: Counter[str] = Counter()
        self._all_pools = False
        self._new_until_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def announce_jobs(self, task_queue: TaskQueue, count: int) -> None:
        """Announce jobs of a task queue, soon."""
        self._jobs[task_queue.pool_id] += count
        self._schedule()

    def announce_all(self) -> None:
        """Announce, soon, that any job may now fit anywhere."""
        self._all_pools = True
        self._schedule()

    def notify_pilot(self, stamp: str) -> None:
        """Make a pilot call the server."""
        self._publish(Message(self._topics.poll(stamp), b"{}"))

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self._announce)

    def _announce(self) -> None:
        self._timer = None
        jobs, self._jobs = self._jobs, Counter()
        if self._all_pools:
            self._all_pools = False
            self._publish(wake_up_message(self._topics, EVERY_POOL, 0, 1.0))
        for pool_id, count in jobs.items():
            probability = answer_probability(count, self._nodes.idle_slots(), self._queues(pool_id))
            for topic in (pool_id, EVERY_POOL) if self._is_new(pool_id) else (pool_id,):
                self._publish(wake_up_message(self._topics, topic, count, probability))

    def _is_new(self, pool_id: str) -> bool:
        """Return whether this server announced the pool's first jobs a short time ago."""
        if not pool_id:
            return False
        now_s = asyncio.get_running_loop().time()
        if len(self._new_until_s) > 2 * len(self._state.mappings) + 1000:
            self._new_until_s = {pool: at for pool, at in self._new_until_s.items() if self._state.mappings.get(pool)}
        return now_s < self._new_until_s.setdefault(pool_id, now_s + NEW_POOL_S)

    def _queues(self, pool_id: str) -> set[str] | None:
        if not pool_id:
            return None
        with self._state.lock:
            return {str(queue) for queue in self._state.mappings.queues(pool_id)}


class BrokerFeed:
    """The broker connection of one server; `name` is its client id."""

    def __init__(self, broker: Broker, name: str, transactions: Transactions) -> None:
        self._topics = broker.topics
        self._transactions = transactions
        self._nodes = KnownNodes(broker.topics)
        self._received = asyncio.Event()
        self._link = BrokerLink(broker, name, self._on_message)
        self._link.subscribe([broker.topics.all_nodes])
        self._announcements = Announcements(transactions.state, broker.topics, self._nodes, self._link.publish)
        self._subscribe()

    def _subscribe(self) -> None:
        state, announcements = self._transactions.state, self._announcements
        state.waiting_listeners.append(in_event_loop(announcements.announce_jobs))
        state.command_listeners.append(in_event_loop(announcements.notify_pilot))
        state.access_listeners.append(in_event_loop(announcements.announce_all))

    async def run(self) -> None:
        """Keep the connection, and mark pilots as lost when their last will arrives, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.run())
            tasks.create_task(self._mark_lost())

    def _on_message(self, message: Message) -> None:
        self._nodes.apply(message)
        self._received.set()

    async def _mark_lost(self) -> None:
        while True:
            await self._received.wait()
            self._received.clear()
            if wills := self._nodes.take_lost():
                lost = await self._transactions.write(partial(mark_disconnected, stamps=wills))
                for stamp in lost:
                    log.warning("pilot lost", pilot_stamp=stamp, why="the broker published its last will")

    async def remove_ended(self) -> None:
        """Remove the messages of ended pilots from the broker."""
        stamps = self._nodes.stamps()
        if stamps:
            over = await self._transactions.read(partial(ended_stamps, stamps=stamps))
            for stamp in over:
                self._link.publish(erase_message(self._topics, stamp))
