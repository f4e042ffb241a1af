"""The loop of all agents: runs cycles at intervals, logs and counts errors, stops on request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from pilotage.backoff import backoff
from pilotage.errors import PilotageError
from pilotage.metrics.table import AGENT_ERRORS
from pilotage.metrics.values import Sample
from pilotage.tracing.recording import span
from pilotage.tracing.spans import SpanKind

log = structlog.get_logger()


class Agent(Protocol):
    """An agent as the loop and the command line see it."""

    @property
    def name(self) -> str:
        """The agent's name, for logs."""

    async def run_once(self) -> timedelta:
        """Run one cycle; returns how long to wait until the next."""

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would do and why, one line per action; changes nothing."""

    async def stop(self) -> None:
        """Stop what the agent keeps running between cycles; no cycle follows."""


class Pause(Protocol):
    """A wait that can be cut short."""

    async def wait(self, length: timedelta) -> None:
        """Return after `length`, or when it is cut short."""

    def cut_short(self) -> None:
        """End the present wait, or else the next one, at once."""


class RealPause:
    """A Pause in real time."""

    def __init__(self) -> None:
        self._cut = asyncio.Event()

    async def wait(self, length: timedelta) -> None:
        """Return after `length`, or when it is cut short."""
        try:
            async with asyncio.timeout(length.total_seconds()):
                await self._cut.wait()
        except TimeoutError:
            return
        self._cut.clear()

    def cut_short(self) -> None:
        """End the present wait, or else the next one, at once."""
        self._cut.set()


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after failed cycles: `first`, doubled with each failure in a row, up to `longest`."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=5)


DEFAULT_BACKOFF = Backoff()


class AgentLoop:
    """Runs one agent until it is stopped.

    `failures` counts failed cycles in a row, and `fault` says why the last one failed, "" = it did not; `errors` counts
    all failed ones.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        pause: Pause | None = None,
        first_after: timedelta = timedelta(0),
        after_failure: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self.cycles = 0
        self.failures = 0
        self.errors = 0
        self.fault = ""
        self._agent = agent
        self._pause = pause or RealPause()
        self._first_after = first_after
        self._after_failure = after_failure
        self._stopping = False

    async def run(self) -> None:
        """Run cycles until `stop`; the present cycle ends first."""
        await self._pause.wait(self._first_after)
        while not self._stopping:
            with span("cycle", SpanKind.INTERNAL, {"pilotage.agent": self._agent.name}):
                length = await self._run_cycle()
            await self._pause.wait(length)

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of the loop."""
        yield Sample(AGENT_ERRORS, (self._agent.name,), self.errors)

    def stop(self) -> None:
        """Let `run` return after the present cycle."""
        self._stopping = True
        self._pause.cut_short()

    async def _run_cycle(self) -> timedelta:
        """Run one cycle; returns how long to wait then."""
        self.cycles += 1
        try:
            length = await self._agent.run_once()
        except PilotageError as error:
            return self._failed(str(error))
        except Exception as error:
            log.exception("unexpected error in an agent", agent=self._agent.name)
            return self._failed(str(error))
        if self.failures:
            log.info("agent recovered", agent=self._agent.name, failures=self.failures)
        self.failures = 0
        self.fault = ""
        return length

    def _failed(self, why: str) -> timedelta:
        self.failures += 1
        self.errors += 1
        self.fault = f"{self._agent.name}: {self.failures} cycles in a row have failed: {why}"
        length = backoff(self.failures, self._after_failure.first, self._after_failure.longest)
        log.warning(
            "cycle of an agent failed",
            agent=self._agent.name,
            reason=why,
            failures=self.failures,
            next_s=length.total_seconds(),
        )
        return length
