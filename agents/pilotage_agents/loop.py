"""The one loop of all agents: rounds at intervals, errors logged and counted, stopped from outside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from pilotage.errors import PilotageError
from pilotage.telemetry import cause_bound, new_cause
from pilotage_agents.core.backoff import backoff

log = structlog.get_logger()


class Agent(Protocol):
    """What the loop runs and the command line shows."""

    @property
    def name(self) -> str:
        """The agent's name, for logs."""

    async def run_once(self) -> timedelta:
        """Do one round; returns how long to wait until the next."""

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would do and why, one line a deed; changes nothing."""

    async def stop(self) -> None:
        """Bring to an end what the agent keeps up; no round follows."""


class Pause(Protocol):
    """A wait that can be cut short."""

    async def wait(self, length: timedelta) -> None:
        """Return after `length`, or as soon as it is cut short."""

    def cut_short(self) -> None:
        """Let the present wait, or else the next one, return at once."""


class RealPause:
    """A pause in real time."""

    def __init__(self) -> None:
        self._cut = asyncio.Event()

    async def wait(self, length: timedelta) -> None:
        """Return after `length`, or as soon as it is cut short."""
        try:
            async with asyncio.timeout(length.total_seconds()):
                await self._cut.wait()
        except TimeoutError:
            return
        self._cut.clear()

    def cut_short(self) -> None:
        """Let the present wait, or else the next one, return at once."""
        self._cut.set()


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long an agent waits after failed rounds: `first`, doubled with each in a row, up to `longest`."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=5)


USUAL_BACKOFF = Backoff()


class AgentLoop:
    """Runs one agent until it is stopped; `failures` counts the failed rounds in a row."""

    def __init__(
        self,
        agent: Agent,
        *,
        pause: Pause | None = None,
        first_after: timedelta = timedelta(0),
        after_failure: Backoff = USUAL_BACKOFF,
    ) -> None:
        self.rounds = 0
        self.failures = 0
        self._agent = agent
        self._pause = pause or RealPause()
        self._first_after = first_after
        self._after_failure = after_failure
        self._stopping = False

    async def run(self) -> None:
        """Run rounds until `stop`; the round that runs then is brought to its end."""
        await self._pause.wait(self._first_after)
        while not self._stopping:
            with cause_bound(new_cause()):
                length = await self._round()
            await self._pause.wait(length)

    def stop(self) -> None:
        """Let `run` return after the present round."""
        self._stopping = True
        self._pause.cut_short()

    async def _round(self) -> timedelta:
        """Do one round; returns how long to wait then."""
        self.rounds += 1
        try:
            length = await self._agent.run_once()
        except PilotageError as error:
            return self._failed(str(error))
        except Exception as error:
            log.exception("agent met an error of its own", agent=self._agent.name)
            return self._failed(str(error))
        if self.failures:
            log.info("agent works again", agent=self._agent.name, failures=self.failures)
        self.failures = 0
        return length

    def _failed(self, why: str) -> timedelta:
        self.failures += 1
        length = backoff(self.failures, self._after_failure.first, self._after_failure.longest)
        log.warning(
            "agent's round failed",
            agent=self._agent.name,
            reason=why,
            failures=self.failures,
            next_s=length.total_seconds(),
        )
        return length
