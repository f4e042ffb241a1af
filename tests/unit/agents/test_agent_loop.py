"""The loop that runs every agent, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from pilotage.errors import ServerUnreachableError
from pilotage_agents.runtime.loop import AgentLoop, Backoff, RealPause

MINUTE = timedelta(minutes=1)


class Script:
    """An agent that does what it is told, round by round, and stops its loop after the last."""

    name = "script"

    def __init__(self, *rounds: Callable[[], timedelta]) -> None:
        self._rounds = list(rounds)
        self.loop: AgentLoop | None = None

    async def run_once(self) -> timedelta:
        deed = self._rounds.pop(0)
        if not self._rounds and self.loop:
            self.loop.stop()
        return deed()

    async def dry_run(self) -> tuple[str, ...]:
        return ()

    async def stop(self) -> None:
        return


class VirtualPause:
    """Passes at once and remembers how long it should have lasted."""

    def __init__(self) -> None:
        self.lengths: list[timedelta] = []

    async def wait(self, length: timedelta) -> None:
        self.lengths.append(length)

    def cut_short(self) -> None:
        return


async def played(*rounds: Callable[[], timedelta]) -> tuple[AgentLoop, list[timedelta]]:
    pause, script = VirtualPause(), Script(*rounds)
    script.loop = AgentLoop(
        script,
        pause=pause,
        first_after=timedelta(seconds=7),
        after_failure=Backoff(timedelta(seconds=1), timedelta(seconds=4)),
    )
    await script.loop.run()
    return script.loop, pause.lengths


def well() -> timedelta:
    return MINUTE


def unreachable() -> timedelta:
    raise ServerUnreachableError("no answer")


def broken() -> timedelta:
    raise RuntimeError("a fault of our own")


async def test_rounds_start_staggered_and_follow_at_the_interval_that_the_agent_names() -> None:
    loop, lengths = await played(well, well)
    assert lengths == [timedelta(seconds=7), MINUTE, MINUTE]
    assert loop.cycles == 2


async def test_failed_rounds_are_counted_and_follow_at_growing_intervals_until_one_succeeds() -> None:
    loop, lengths = await played(unreachable, broken, unreachable, unreachable, well, unreachable)
    assert [length.total_seconds() for length in lengths[1:]] == [1, 2, 4, 4, 60, 1]
    assert loop.failures == 1


async def test_a_sleeping_loop_is_stopped_at_once() -> None:
    began = asyncio.Event()

    def note() -> timedelta:
        began.set()
        return timedelta(days=1)

    loop = AgentLoop(Script(note, note))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        await began.wait()
        loop.stop()
    assert loop.cycles == 1


async def test_a_wake_up_that_comes_before_the_wait_is_not_lost() -> None:
    pause = RealPause()
    pause.cut_short()
    async with asyncio.timeout(10):
        await pause.wait(timedelta(days=1))
