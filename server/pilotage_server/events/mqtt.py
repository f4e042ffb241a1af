"""The server's side of the MQTT broker: wake-ups and commands go out, node states and last wills come in.

Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from pilotage.clock import boot_time_s
from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import Broker
from pilotage.mqtt.topics import EVERY_POOL, Message, Topics, erase_message, wake_up_message
from pilotage_server.background import PeriodicTask
from pilotage_server.core.matching.demand import answer_probability
from pilotage_server.core.pilots.pilots import disconnected_after
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.events.nodes import KnownNodes
from pilotage_server.events.pilot_logins import RESPONSES, PilotLogins
from pilotage_server.operations.pilots.pilots import ended_stamps, living_queues, mark_disconnected
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.dispatch import in_event_loop
from pilotage_server.rpc.framework.transactions import Transactions

log = structlog.get_logger()


READ_EVERY_S = 0.1
"""Interval at which a batch of received messages is read."""

CHECK_WILLS_EVERY_S = 1.0
SET_UP_EVERY_S = 1.0

CLEANUP_EVERY_S = 20.0
"""Interval at which the messages and logins of ended pilots are removed from the broker."""

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
    """The broker connection of one server; `name` is its client id.

    With `makes_logins` the server makes a login at the broker for each pilot; `logins` None = it does not.
    """

    def __init__(self, broker: Broker, name: str, transactions: Transactions, *, makes_logins: bool) -> None:
        self._topics = broker.topics
        self._transactions = transactions
        check_after_s = disconnected_after(transactions.state.rules).total_seconds()
        self._nodes = KnownNodes(broker.topics, boot_time_s, check_after_s)
        self._link = BrokerLink(broker, name, self._receive, self._connection)
        self.logins = PilotLogins(broker, self._link.publish) if makes_logins else None
        self._link.subscribe([broker.topics.all_nodes, *([RESPONSES] if makes_logins else [])])
        self._announcements = Announcements(transactions.state, broker.topics, self._nodes, self._link.publish)
        self._subscribe()

    @property
    def fault(self) -> str:
        """Why there is no connection; "" = there is one."""
        return self._link.fault

    def _subscribe(self) -> None:
        state, announcements = self._transactions.state, self._announcements
        state.waiting_listeners.append(in_event_loop(announcements.announce_jobs))
        state.command_listeners.append(in_event_loop(announcements.notify_pilot))
        state.access_listeners.append(in_event_loop(announcements.announce_all))

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        await self._link.run()

    def duties(self) -> tuple[PeriodicTask, ...]:
        """Return what is done with the messages; it needs the database, and so it may fail and is tried again."""
        logins = self.logins
        return (
            *(() if logins is None else (PeriodicTask("access to the broker", SET_UP_EVERY_S, logins.set_up),)),
            PeriodicTask("messages of nodes", READ_EVERY_S, self.read_messages),
            PeriodicTask("last wills", CHECK_WILLS_EVERY_S, self.check_wills),
            PeriodicTask("ended nodes", CLEANUP_EVERY_S, self.remove_ended),
        )

    def _connection(self, connected: bool) -> None:
        if self.logins is not None:
            self.logins.set_connected(connected)

    def _receive(self, message: Message) -> None:
        if self.logins is not None and message.topic == RESPONSES:
            self.logins.receive(message)
        else:
            self._nodes.receive(message)

    async def read_messages(self) -> None:
        """Read some of the received messages."""
        reports = self._nodes.read_batch()
        if reports:
            unknown = self._nodes.unknown_stamps(reports)
            living = await self._transactions.read(partial(living_queues, stamps=unknown)) if unknown else {}
            self._nodes.apply(reports, living)

    async def check_wills(self) -> None:
        """Mark pilots as lost that have not called since a while before their last wills."""
        due = self._nodes.due_wills()
        if due:
            lost = await self._transactions.write(partial(mark_disconnected, stamps=due))
            for stamp in lost:
                log.warning("pilot lost", pilot_stamp=stamp, why="it left the broker and has not called")
            self._nodes.postpone_wills(due)

    async def remove_ended(self) -> None:
        """Remove the messages and logins of pilots that are over, and of unknown stamps, from the broker."""
        with_login = frozenset() if self.logins is None else await self.logins.stamps()
        stamps = self._nodes.stamps() | with_login
        if stamps:
            over = await self._transactions.read(partial(ended_stamps, stamps=stamps))
            self._nodes.remove(over)
            for stamp in over:
                self._link.publish(erase_message(self._topics, stamp))
            if self.logins is not None:
                await self.logins.remove(sorted(with_login & set(over)))
