"""The loop that runs every agent, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from pilotage.errors import ServerUnreachableError
from pilotage_agents.runtime.loop import AgentLoop, Backoff, RealPause

MINUTE = timedelta(minutes=1)


class ScriptedAgent:
    """An agent that runs these cycles and stops its loop in the last."""

    name = "scripted"

    def __init__(self, *cycles: Callable[[], timedelta]) -> None:
        self._cycles = list(cycles)
        self.loop: AgentLoop | None = None

    async def run_once(self) -> timedelta:
        cycle = self._cycles.pop(0)
        if not self._cycles and self.loop:
            self.loop.stop()
        return cycle()

    async def dry_run(self) -> tuple[str, ...]:
        return ()

    async def stop(self) -> None:
        return


class VirtualPause:
    """Passes at once and records its length."""

    def __init__(self) -> None:
        self.lengths: list[timedelta] = []

    async def wait(self, length: timedelta) -> None:
        self.lengths.append(length)

    def cut_short(self) -> None:
        return


async def run_loop(*cycles: Callable[[], timedelta]) -> tuple[AgentLoop, list[timedelta]]:
    pause, agent = VirtualPause(), ScriptedAgent(*cycles)
    agent.loop = AgentLoop(
        agent,
        pause=pause,
        first_after=timedelta(seconds=7),
        after_failure=Backoff(timedelta(seconds=1), timedelta(seconds=4)),
    )
    await agent.loop.run()
    return agent.loop, pause.lengths


def succeed() -> timedelta:
    return MINUTE


def unreachable() -> timedelta:
    raise ServerUnreachableError("no answer")


def broken() -> timedelta:
    raise RuntimeError("a fault of our own")


async def test_cycles_start_staggered_and_follow_at_agent_interval() -> None:
    loop, lengths = await run_loop(succeed, succeed)
    assert lengths == [timedelta(seconds=7), MINUTE, MINUTE]
    assert loop.cycles == 2


async def test_failed_cycles_back_off_until_one_succeeds() -> None:
    loop, lengths = await run_loop(unreachable, broken, unreachable, unreachable, succeed, unreachable)
    assert [length.total_seconds() for length in lengths[1:]] == [1, 2, 4, 4, 60, 1]
    assert loop.failures == 1


async def test_stop_interrupts_the_pause() -> None:
    started = asyncio.Event()

    def record_start() -> timedelta:
        started.set()
        return timedelta(days=1)

    loop = AgentLoop(ScriptedAgent(record_start, record_start))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        await started.wait()
        loop.stop()
    assert loop.cycles == 1


async def test_wake_up_before_the_pause_is_not_lost() -> None:
    pause = RealPause()
    pause.cut_short()
    async with asyncio.timeout(10):
        await pause.wait(timedelta(days=1))
