"""Agents in turn: any number of copies of one may run, on any hosts, and one of them acts at a time.

The server gives the turn for a while. It is renewed between the rounds and beside them, so a copy that dies is followed
by another when that while is over, and one that ends gives its turn back. It is counted here from the sending of the
last request that was granted: this copy ends its round before the server lets another begin one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar, runtime_checkable

import structlog

from pilotage.clock import BootClock
from pilotage.errors import PilotageError, StateConflictError, TurnLostError, WorldError
from pilotage_agents.link import Turn, TurnLink
from pilotage_agents.loop import USUAL_BACKOFF, Agent, Backoff, Pause

log = structlog.get_logger()

_Result = TypeVar("_Result")

_ASKED_WITHIN_A_TURN = 3
"""So often a turn is asked for in the time that it is given for: a lost answer or two lose no turn."""


@runtime_checkable
class OutlastingAgent(Protocol):
    """An agent whose work goes on between its rounds."""

    def turn_taken(self) -> None:
        """Hear of a turn that is not the one before kept: another copy may have acted meanwhile."""

    def turn_lost(self) -> None:
        """End what goes on: another copy may act now."""

    async def run_single(self) -> None:
        """Do one round and all that follows from it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of an agent: the turn that it takes, for how long at a time, and where it runs, for people."""

    turn: Turn
    length_s: float
    place: str


class InTurn:
    """An agent that does its rounds while its copy has the turn, and nothing while another has it.

    One whose work outlasts its rounds hears of it when the turn is over, also between them. `after_failure` is for the
    loop that runs it.
    """

    def __init__(
        self,
        agent: Agent,
        copy: Copy,
        link: TurnLink,
        clock: BootClock,
        pause: Pause,
        after_failure: Backoff = USUAL_BACKOFF,
    ) -> None:
        self.name = agent.name
        self.after_failure = after_failure
        self._agent = agent
        self._copy = copy
        self._link = link
        self._clock = clock
        self._pause = pause
        self._outlasting = agent if isinstance(agent, OutlastingAgent) else None
        self._end: asyncio.TimerHandle | None = None
        self._asks_every_s = copy.length_s / _ASKED_WITHIN_A_TURN
        self._ends_s = 0.0
        self._next_round_s = 0.0
        self._acts_elsewhere = ""
        self._works = False
        self._asks = False

    async def run_once(self) -> timedelta:
        """Take or renew the turn and do a round in it, when it is time for one; returns when to ask again."""
        if not await self._take():
            return timedelta(seconds=self._asks_every_s)
        if self._clock() >= self._next_round_s:
            length = await self._act(self._agent.run_once)
            self._next_round_s = self._clock() + length.total_seconds()
        return timedelta(seconds=max(0.0, min(self._asks_every_s, self._next_round_s - self._clock())))

    async def do_one_round(self) -> None:
        """Do a single round in turn, and give the turn back.

        Raises
        ------
        StateConflictError
            Another copy has the turn: nothing has been done.
        """
        if not await self._take():
            raise StateConflictError(f"another copy of the {self.name} is acting, at {self._acts_elsewhere}")
        try:
            await self._act(self._agent.run_once if self._outlasting is None else self._outlasting.run_single)
        finally:
            await self._give_back()

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would do and why, one line a deed; that needs no turn."""
        return await self._agent.dry_run()

    async def stop(self) -> None:
        """Bring to an end what this copy keeps up, unless another acts, and let another act.

        A turn that has run out while this copy was asleep or cut off is asked for once more. Where nobody answers, what
        is this copy's own is brought to an end nevertheless.
        """
        if self._left_s() <= 0 and not await self._may_end():
            return
        try:
            await self._renewing_beside(self._agent.stop, lambda: None)
        finally:
            await self._give_back()

    async def _may_end(self) -> bool:
        """Return whether this copy, which has no turn, may end what it keeps up: not while another acts."""
        if self._acts_elsewhere:
            return False
        try:
            return await self._take()
        except WorldError as error:
            log.warning("turn not taken", agent=self.name, reason=str(error))
            return True

    async def _take(self) -> bool:
        """Ask for the turn, also to keep it; returns whether this copy has it.

        Raises TurnLostError when the answer came so late that the turn is over already.
        """
        asked_s = self._clock()
        answer = await self._link.take_turn(self._copy.turn, self._copy.length_s, self._copy.place)
        if not answer.taken:
            self._ends_s = 0.0
            self._over()
            if answer.place != self._acts_elsewhere:
                log.info("another copy of the agent acts", agent=self.name, turn=self._copy.turn.agent, at=answer.place)
            self._acts_elsewhere = answer.place
            return False
        if self._left_s() <= 0:
            log.info("turn taken", agent=self.name, turn=self._copy.turn.agent)
            if self._outlasting is not None:
                self._outlasting.turn_taken()
        self._ends_s = asked_s + self._copy.length_s
        self._acts_elsewhere = ""
        self._over()
        if self._left_s() <= 0:
            raise TurnLostError(self._copy.turn.agent)
        return True

    def _over(self) -> None:
        """End what outlasts the rounds if the turn is over; else do so then, unless it is renewed."""
        if self._outlasting is None:
            return
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if self._left_s() <= 0:
            self._outlasting.turn_lost()
        else:
            self._end = asyncio.get_running_loop().call_later(self._left_s(), self._over)

    async def _act(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Work and renew the turn beside that; raises TurnLostError when it is lost before the work has ended."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as end:
                return await self._renewing_beside(work, lambda: end.reschedule(loop.time()))
        except TimeoutError:
            self._over()  # once more: until it was cut off the round may have begun more
            raise TurnLostError(self._copy.turn.agent) from None

    async def _renewing_beside(self, work: Callable[[], Awaitable[_Result]], lost: Callable[[], None]) -> _Result:
        """Return what `work` does, with the turn renewed beside it until it is `lost`."""
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._keep(lost))
                self._works = True
                try:
                    return await work()
                finally:
                    await self._end_keeping(keeping)
        except ExceptionGroup as failed:  # the work's own error: the keeping of the turn raises none
            raise failed.exceptions[0] from None

    async def _keep(self, lost: Callable[[], None]) -> None:
        """Renew the turn while this copy works, until it is lost; then say so."""
        while self._works and self._left_s() > 0:
            await self._pause.wait(timedelta(seconds=min(self._asks_every_s, self._left_s())))
            self._asks = True
            try:
                async with asyncio.timeout(self._left_s()):
                    await self._take()
            except (PilotageError, TimeoutError) as error:
                log.warning("turn not renewed", agent=self.name, reason=str(error), left_s=self._left_s())
            finally:
                self._asks = False
        if self._works:
            lost()

    async def _end_keeping(self, keeping: asyncio.Task[None]) -> None:
        """Renew the turn no more; a renewal that is under way is waited for, lest it come after the giving back."""
        self._works = False
        if not self._asks:
            keeping.cancel()
        await asyncio.wait([keeping])

    async def _give_back(self) -> None:
        self._ends_s = 0.0
        self._over()
        await self._link.give_back_turn(self._copy.turn)

    def _left_s(self) -> float:
        return max(0.0, self._ends_s - self._clock())
