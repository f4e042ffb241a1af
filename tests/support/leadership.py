"""Copies of an agent that elect a leader in a real database, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pilotage.errors import ServerUnreachableError
from pilotage.values.leadership import Leadership, LeadershipAnswer
from pilotage_agents.runtime.leadership import LeaderAgent, Replica
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.storage.database.engine import Database
from support.virtual_clock import VirtualClock

LONG = "turn_s = 30"
"""The line of a configuration: no stall of this machine costs an agent its turn."""


def followed_soon(config: Path) -> Path:
    """Let a copy of this configuration that is killed be followed by another within seconds; returns the file."""
    text = config.read_text()
    assert LONG in text
    config.write_text(text.replace(LONG, "turn_s = 5"))
    return config


TURN_S = 30.0


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class DatabaseTurns:
    """The server's part of turns without the wire; `while_answered` happens while an answer is on its way.

    A request for a turn arrives as soon as `arrives` is set, whether or not its sender still waits for the answer;
    `is_sent` is set when there is one.
    """

    database: Database
    is_reachable: bool = True
    while_answered: Callable[[], object] = lambda: None
    arrives: asyncio.Event = field(default_factory=_is_set)
    is_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def take_leadership(self, turn: Leadership, for_s: float, host: str) -> LeadershipAnswer:
        self.is_sent.set()
        return await asyncio.shield(self._taken(turn, for_s, host))

    async def _taken(self, turn: Leadership, for_s: float, place: str) -> LeadershipAnswer:
        await self.arrives.wait()
        self._reach()
        answer = self.database.write(
            lambda transaction: take_leadership(transaction, turn, timedelta(seconds=for_s), place)
        )
        self.while_answered()
        return answer

    async def release_leadership(self, turn: Leadership) -> None:
        self._reach()
        self.database.write(lambda transaction: release_leadership(transaction, turn))

    def _reach(self) -> None:
        if not self.is_reachable:
            raise ServerUnreachableError("the server does not answer")


class Beats:
    """A pause that lasts until the test lets it end."""

    def __init__(self) -> None:
        self._beat = asyncio.Event()
        self._waits = asyncio.Event()

    async def wait(self, length: timedelta) -> None:
        self._waits.set()
        await self._beat.wait()
        self._beat.clear()

    def cut_short(self) -> None:
        self._beat.set()

    async def begun(self) -> None:
        """Return when the first wait has begun."""
        await self._waits.wait()

    async def beat(self) -> None:
        """End the present wait, and return when the next has begun."""
        await self._waits.wait()
        self._waits.clear()
        self._beat.set()
        await self._waits.wait()

    def last_beat(self) -> None:
        """End the present wait; no other follows."""
        self._beat.set()


async def _at_once() -> None:
    return


@dataclass
class Worker:
    """An agent that notes what it does; `work` is what a round does after it was noted, `end` what its stop does."""

    interval: timedelta = timedelta(days=1)
    work: Callable[[], Awaitable[None]] = _at_once
    end: Callable[[], Awaitable[None]] = _at_once
    deeds: list[str] = field(default_factory=list)
    name: str = "worker"

    async def run_once(self) -> timedelta:
        self.deeds.append("began")
        try:
            await self.work()
        except asyncio.CancelledError:
            self.deeds.append("cut off")
            raise
        self.deeds.append("ended")
        return self.interval

    async def dry_run(self) -> tuple[str, ...]:
        return ("would work",)

    async def stop(self) -> None:
        await self.end()
        self.deeds.append("stopped")


@dataclass
class OutlastingWorker(Worker):
    """One whose work goes on between its rounds; `ended` is set when it was told to end that."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def leadership_gained(self) -> None:
        self.deeds.append("turn taken")

    def leadership_lost(self) -> None:
        self.deeds.append("turn lost")
        self.ended.set()

    async def run_to_completion(self) -> None:
        await self.run_once()
        self.deeds.append("waited for the rest")


def a_copy(
    holder: str, worker: Worker, turns: DatabaseTurns, clock: VirtualClock, beats: Beats | None = None
) -> LeaderAgent:
    """Return a copy of the agent."""
    copy = Replica(Leadership("worker", holder), TURN_S, f"host of {holder}")
    return LeaderAgent(worker, copy, turns, lambda: clock().timestamp(), beats or Beats())
