"""What a server does by itself goes on, whatever a round meets."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage_server.background import PeriodicTask, run_periodically


class Rounds:
    """A duty whose rounds fail for a while, and which stops the server after the last."""

    def __init__(self, failing: int, in_all: int) -> None:
        self.done = 0
        self.stopping = asyncio.Event()
        self._failing, self._in_all = failing, in_all

    async def run_once(self) -> None:
        self.done += 1
        if self.done == self._in_all:
            self.stopping.set()
        if self.done <= self._failing:
            raise WorldError("the disk is full", transient=True)


async def events_of(failing: int, in_all: int) -> list[str]:
    rounds = Rounds(failing, in_all)
    with capture_logs() as logs:
        await run_periodically(PeriodicTask("test", 0.0, rounds.run_once), rounds.stopping)
    assert rounds.done == in_all
    return [line["event"] for line in logs]


async def test_a_round_that_fails_does_not_end_the_duty() -> None:
    assert await events_of(failing=1, in_all=3) == ["duty failed", "duty works again"]


async def test_a_lasting_trouble_does_not_fill_the_log() -> None:
    events = await events_of(failing=1000, in_all=1000)

    assert 1 < len(events) <= 10


async def test_a_duty_that_works_says_nothing() -> None:
    assert await events_of(failing=0, in_all=5) == []


async def test_a_server_that_stops_waits_for_no_next_round() -> None:
    rounds = Rounds(failing=0, in_all=1)

    async with asyncio.timeout(5):
        await run_periodically(PeriodicTask("test", 3600.0, rounds.run_once), rounds.stopping)

    assert rounds.done == 1
