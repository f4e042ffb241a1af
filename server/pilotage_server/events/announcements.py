"""Jobs that have come to wait, gathered for a moment and announced to their pools."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from pilotage.topics import EVERY_POOL, Message, Topics, wake_up
from pilotage_server.core.announcing import answer_probability
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.events.nodes import KnownNodes
from pilotage_server.operations.world import World

GATHERED_S = 0.02
"""News of one moment travel together: a submission of a thousand jobs is one message a pool."""

NEW_S = 900.0
"""So long the jobs of a pool are announced to all pilots: those that came before it do not listen for it yet."""


class Announcements:
    """What the world tells of new jobs, made into wake-ups; everything here happens in the event loop."""

    def __init__(self, world: World, topics: Topics, nodes: KnownNodes, publish: Callable[[Message], None]) -> None:
        self._world = world
        self._topics = topics
        self._nodes = nodes
        self._publish = publish
        self._jobs: Counter[str] = Counter()
        self._everything = False
        self._new_until_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def jobs_arrived(self, task_queue: TaskQueue, count: int) -> None:
        """Announce jobs of a task queue, soon."""
        self._jobs[task_queue.pool_id] += count
        self._gather()

    def everything_changed(self) -> None:
        """Announce that any job may now fit anywhere, soon."""
        self._everything = True
        self._gather()

    def pilot_called(self, stamp: str) -> None:
        """Tell a pilot to ask the server."""
        self._publish(Message(self._topics.ask(stamp), b"{}"))

    def _gather(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHERED_S, self._announce)

    def _announce(self) -> None:
        self._timer = None
        jobs, self._jobs = self._jobs, Counter()
        if self._everything:
            self._everything = False
            self._publish(wake_up(self._topics, EVERY_POOL, 0, 1.0))
        for pool_id, count in jobs.items():
            probability = answer_probability(count, self._nodes.idle_slots(), self._queues(pool_id))
            for topic in (pool_id, EVERY_POOL) if self._is_new(pool_id) else (pool_id,):
                self._publish(wake_up(self._topics, topic, count, probability))

    def _is_new(self, pool_id: str) -> bool:
        """Whether it is not long, since this server started, that jobs of a pool were first announced."""
        if not pool_id:
            return False
        now_s = asyncio.get_running_loop().time()
        if len(self._new_until_s) > 2 * len(self._world.mappings) + 1000:
            self._new_until_s = {pool: at for pool, at in self._new_until_s.items() if self._world.mappings.get(pool)}
        return now_s < self._new_until_s.setdefault(pool_id, now_s + NEW_S)

    def _queues(self, pool_id: str) -> set[str] | None:
        if not pool_id:
            return None
        with self._world.lock:
            return {str(queue) for queue in self._world.mappings.queues(pool_id)}
