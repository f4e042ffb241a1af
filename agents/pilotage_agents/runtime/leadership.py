"""Leader election of agents: of all replicas of an agent, one acts at a time.

The server grants the leadership for a limited time. The leader renews it between its cycles and during them. When a
replica dies, another becomes leader after that time; one that stops releases the leadership at once. A replica counts
the time from the sending of its last granted request, so its cycle ends before the server lets another begin one.

Replicas that serve the same queues, routes or VOs compete for one leadership; others have leaderships of other names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable
from uuid import uuid4

import structlog

from pilotage.clock import BootClock, now
from pilotage.errors import LeadershipLostError, PilotageError, StateConflictError, WorldError
from pilotage.metrics.table import AGENT_CYCLE_SECONDS, AGENT_CYCLES, AGENT_LEADER, AGENT_SUCCESS
from pilotage.metrics.values import Observations, Sample
from pilotage.text import folded_set
from pilotage.values.leadership import AgentStatus, Leadership
from pilotage_agents.runtime.link import LeadershipLink
from pilotage_agents.runtime.loop import DEFAULT_BACKOFF, Agent, Backoff, Pause

log = structlog.get_logger()

_Result = TypeVar("_Result")

_LONGEST_ERROR = 2000
"""Characters of an error that are reported."""

_RENEWALS_PER_TERM = 3
"""One or two lost answers within a term lose no leadership."""


@runtime_checkable
class LongRunningAgent(Protocol):
    """An agent whose work continues between its cycles."""

    def leadership_gained(self) -> None:
        """Handle the start of leadership after a gap; another replica may have acted in between."""

    def leadership_lost(self) -> None:
        """Stop all continuing work: another replica may act now."""

    async def run_to_completion(self) -> None:
        """Run one cycle and all work that follows from it."""


@runtime_checkable
class MeasuredAgent(Protocol):
    """An agent with metrics of its own."""

    def samples(self) -> Iterable[Sample]:
        """Return them as they are now; called in another thread."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of an agent: its leadership, the time it asks for, and its host, for people."""

    leadership: Leadership
    duration_s: float
    host: str


class LeaderAgent:
    """Runs the cycles of an agent while its replica is the leader.

    A `LongRunningAgent` is notified when the leadership ends, also between cycles. `after_failure` is for `AgentLoop`.
    """

    def __init__(
        self,
        agent: Agent,
        replica: Replica,
        link: LeadershipLink,
        clock: BootClock,
        pause: Pause,
        after_failure: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self.name = agent.name
        self.after_failure = after_failure
        self._agent = agent
        self._replica = replica
        self._link = link
        self._clock = clock
        self._pause = pause
        self._long_running = agent if isinstance(agent, LongRunningAgent) else None
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._renewal_interval_s = replica.duration_s / _RENEWALS_PER_TERM
        self._expires_s = 0.0
        self._next_cycle_s = 0.0
        self._leader_host = ""
        self._working = False
        self._renewing = False
        self._cycles = 0
        self._durations_s = Observations(AGENT_CYCLE_SECONDS.bounds)
        self._status = AgentStatus(version("pilotage"))

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of the cycles, and those of the agent."""
        own = (self.name,)
        yield Sample(AGENT_CYCLES, own, self._cycles)
        yield Sample(AGENT_CYCLE_SECONDS, own, self._durations_s)
        yield Sample(AGENT_LEADER, own, self._remaining_s() > 0)
        if self._status.last_success is not None:
            yield Sample(AGENT_SUCCESS, own, self._status.last_success.timestamp())
        if isinstance(self._agent, MeasuredAgent):
            yield from self._agent.samples()

    async def run_once(self) -> timedelta:
        """Acquire or renew the leadership and run a cycle if one is due; returns the time until the next call."""
        if not await self._acquire():
            return timedelta(seconds=self._renewal_interval_s)
        if self._clock() >= self._next_cycle_s:
            began_s = self._clock()
            try:
                length = await self._run_as_leader(self._agent.run_once)
            except Exception as error:
                self._record_failure(error)
                raise
            finally:
                self._cycles += 1
                self._durations_s.observe(self._clock() - began_s)
            ended = now()
            self._status = replace(self._status, last_cycle=ended, last_success=ended, failures=0)
            self._next_cycle_s = self._clock() + length.total_seconds()
        return timedelta(seconds=max(0.0, min(self._renewal_interval_s, self._next_cycle_s - self._clock())))

    def _record_failure(self, error: Exception) -> None:
        """Report a failed cycle from the next request on; the log has more."""
        ended, text = now(), " ".join(str(error).split()) or type(error).__name__
        self._status = replace(
            self._status,
            last_cycle=ended,
            failures=self._status.failures + 1,
            last_error=text[:_LONGEST_ERROR],
            last_error_time=ended,
        )

    async def run_one_cycle(self) -> None:
        """Run a single cycle as leader, and release the leadership.

        Raises
        ------
        StateConflictError
            Another replica is the leader: nothing was done.
        """
        if not await self._acquire():
            raise StateConflictError(f"another replica of the {self.name} leads, on {self._leader_host}")
        try:
            await self._run_as_leader(
                self._agent.run_once if self._long_running is None else self._long_running.run_to_completion
            )
        finally:
            await self._release()

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would do and why, one line per action; needs no leadership."""
        return await self._agent.dry_run()

    async def stop(self) -> None:
        """Stop the agent unless another replica leads, and release the leadership.

        A leadership that expired while this replica was suspended or cut off is requested once more. If no server
        answers, the agent stops its own work all the same.
        """
        if self._remaining_s() <= 0 and not await self._may_stop():
            with contextlib.suppress(WorldError):
                await self._release()  # it does not lead: the server only records that it has ended
            return
        try:
            await self._run_with_renewal(self._agent.stop, lambda: None)
        finally:
            await self._release()

    async def _may_stop(self) -> bool:
        """Return whether this replica, which does not lead, may stop its work: not while another leads."""
        if self._leader_host:
            return False
        try:
            return await self._acquire()
        except WorldError as error:
            log.warning("turn not taken", agent=self.name, reason=str(error))
            return True

    async def _acquire(self) -> bool:
        """Request or renew the leadership; returns whether this replica leads.

        Raises LeadershipLostError when the answer came after the leadership had expired.
        """
        requested_s = self._clock()
        answer = await self._link.take_leadership(
            self._replica.leadership, self._replica.duration_s, self._replica.host, self._status
        )
        if not answer.granted:
            self._expires_s = 0.0
            self._schedule_expiry()
            if answer.host != self._leader_host:
                log.info(
                    "another copy of the agent acts",
                    agent=self.name,
                    turn=self._replica.leadership.agent,
                    at=answer.host,
                )
            self._leader_host = answer.host
            return False
        if self._remaining_s() <= 0:
            log.info("turn taken", agent=self.name, turn=self._replica.leadership.agent)
            if self._long_running is not None:
                self._long_running.leadership_gained()
        self._expires_s = requested_s + self._replica.duration_s
        self._leader_host = ""
        self._schedule_expiry()
        if self._remaining_s() <= 0:
            raise LeadershipLostError(self._replica.leadership.agent)
        return True

    def _schedule_expiry(self) -> None:
        """Stop continuing work if the leadership is over; else schedule this call for its end."""
        if self._long_running is None:
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if self._remaining_s() <= 0:
            self._long_running.leadership_lost()
        else:
            self._expiry_timer = asyncio.get_running_loop().call_later(self._remaining_s(), self._schedule_expiry)

    async def _run_as_leader(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run `work` and renew the leadership; raises LeadershipLostError when it is lost before `work` ends."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as end:
                return await self._run_with_renewal(work, lambda: end.reschedule(loop.time()))
        except TimeoutError:
            self._schedule_expiry()  # again: the cycle may have started more work until it was cancelled
            raise LeadershipLostError(self._replica.leadership.agent) from None

    async def _run_with_renewal(self, work: Callable[[], Awaitable[_Result]], lost: Callable[[], None]) -> _Result:
        """Return the result of `work`; renews the leadership meanwhile and calls `lost` when that fails."""
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._renew_until_lost(lost))
                self._working = True
                try:
                    return await work()
                finally:
                    self._working = False
                    # A renewal that is under way is awaited: it must not arrive after the release.
                    if not self._renewing:
                        keeping.cancel()
                    await asyncio.wait([keeping])
        except ExceptionGroup as failed:  # the error of `work`: renewal raises none
            raise failed.exceptions[0] from None

    async def _renew_until_lost(self, lost: Callable[[], None]) -> None:
        """Renew the leadership while this replica works; call `lost` when it expires."""
        while self._working and self._remaining_s() > 0:
            await self._pause.wait(timedelta(seconds=min(self._renewal_interval_s, self._remaining_s())))
            self._renewing = True
            try:
                async with asyncio.timeout(self._remaining_s()):
                    await self._acquire()
            except (PilotageError, TimeoutError) as error:
                log.warning("turn not renewed", agent=self.name, reason=str(error), left_s=self._remaining_s())
            finally:
                self._renewing = False
        if self._working:
            lost()

    async def _release(self) -> None:
        self._expires_s = 0.0
        self._schedule_expiry()
        await self._link.release_leadership(self._replica.leadership)

    def _remaining_s(self) -> float:
        return max(0.0, self._expires_s - self._clock())


_REPLICA_ID_FILE = "copy-id"


def replica_id(folder: Path) -> str:
    """Return the id of the replica whose folder this is, created on first use; raises WorldError.

    Processes that start at the same time in a new folder, such as an agent and a dry run, get the same id. An agent
    that restarts in its folder is the same replica.
    """
    path = folder / _REPLICA_ID_FILE
    try:
        if not path.exists():
            _create_replica_id(path)
        return path.read_text()
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error


def _create_replica_id(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(uuid4().hex)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, a link does not replace an id that another process has just created
    finally:
        draft.unlink(missing_ok=True)


_LONGEST = 400


def leadership_name(agent: str, *served: Iterable[str]) -> str:
    """Return the name of the leadership of replicas of `agent` that serve the same names.

    Each of `served` is a set: neither order nor letter case counts. A long list is replaced by its hash.
    """
    listed = " through ".join(", ".join(sorted(folded_set(names))) for names in served)
    if not listed:
        return agent
    shown = listed if len(listed) <= _LONGEST else sha256(listed.encode()).hexdigest()
    return f"{agent} of {shown}"
