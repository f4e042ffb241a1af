"""Replicas of an agent that elect a leader through a real database, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pilotage.errors import ServerUnreachableError
from pilotage.values.leadership import AgentStatus, Leadership, LeadershipAnswer
from pilotage_agents.runtime.leadership import LeaderAgent, Replica
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.storage.database.engine import Database
from support.virtual_clock import VirtualClock

LONG_LEADERSHIP = "turn_s = 30"
"""A line of a configuration: leadership outlasts any stall of the test machine."""

TURN_S = 30.0


def with_short_leadership(config: Path) -> Path:
    """Shorten the leadership in a configuration, so that another replica follows a killed one within seconds."""
    text = config.read_text()
    assert LONG_LEADERSHIP in text
    config.write_text(text.replace(LONG_LEADERSHIP, "turn_s = 5"))
    return config


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class DatabaseLeadership:
    """The server's part of the election, without the wire.

    `request_sent` is set by a request for leadership. It is executed once `may_arrive` is set, whether or not the
    replica still waits for the answer, and `before_answer` is called before the answer returns.
    """

    database: Database
    is_reachable: bool = True
    before_answer: Callable[[], object] = lambda: None
    may_arrive: asyncio.Event = field(default_factory=_set_event)
    request_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def take_leadership(self, turn: Leadership, for_s: float, host: str, status: AgentStatus) -> LeadershipAnswer:
        self.request_sent.set()
        return await asyncio.shield(self._take(turn, for_s, host, status))

    async def _take(self, turn: Leadership, for_s: float, host: str, status: AgentStatus) -> LeadershipAnswer:
        await self.may_arrive.wait()
        self._check_reachable()
        answer = self.database.write(
            lambda transaction: take_leadership(transaction, turn, timedelta(seconds=for_s), host, status=status)
        )
        self.before_answer()
        return answer

    async def release_leadership(self, turn: Leadership) -> None:
        self._check_reachable()
        self.database.write(lambda transaction: release_leadership(transaction, turn))

    def _check_reachable(self) -> None:
        if not self.is_reachable:
            raise ServerUnreachableError("the server does not answer")


class ManualPause:
    """A pause that lasts until the test ends it."""

    def __init__(self) -> None:
        self._end = asyncio.Event()
        self._began = asyncio.Event()

    async def wait(self, length: timedelta) -> None:
        self._began.set()
        await self._end.wait()
        self._end.clear()

    def cut_short(self) -> None:
        self._end.set()

    async def begun(self) -> None:
        """Wait until the first pause has begun."""
        await self._began.wait()

    async def beat(self) -> None:
        """End the current pause, and wait until the next has begun."""
        await self._began.wait()
        self._began.clear()
        self._end.set()
        await self._began.wait()

    def end_pause(self) -> None:
        """End the current pause; no other follows."""
        self._end.set()


async def _do_nothing() -> None:
    return


@dataclass
class RecordingAgent:
    """An agent that records its steps; its cycle awaits `work` and its stop awaits `end`."""

    interval: timedelta = timedelta(days=1)
    work: Callable[[], Awaitable[None]] = _do_nothing
    end: Callable[[], Awaitable[None]] = _do_nothing
    steps: list[str] = field(default_factory=list)
    name: str = "worker"

    async def run_once(self) -> timedelta:
        self.steps.append("began")
        try:
            await self.work()
        except asyncio.CancelledError:
            self.steps.append("cut off")
            raise
        self.steps.append("ended")
        return self.interval

    async def dry_run(self) -> tuple[str, ...]:
        return ("would work",)

    async def stop(self) -> None:
        await self.end()
        self.steps.append("stopped")


@dataclass
class BackgroundAgent(RecordingAgent):
    """An agent with background tasks between its cycles; `ended` is set when it loses leadership."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def leadership_gained(self) -> None:
        self.steps.append("turn taken")

    def leadership_lost(self) -> None:
        self.steps.append("turn lost")
        self.ended.set()

    async def run_to_completion(self) -> None:
        await self.run_once()
        self.steps.append("waited for the rest")


def a_copy(
    holder: str,
    worker: RecordingAgent,
    turns: DatabaseLeadership,
    clock: VirtualClock,
    beats: ManualPause | None = None,
) -> LeaderAgent:
    """Return a replica of the agent."""
    replica = Replica(Leadership("worker", holder), TURN_S, f"host of {holder}")
    return LeaderAgent(worker, replica, turns, lambda: clock().timestamp(), beats or ManualPause())
