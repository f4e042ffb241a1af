"""Periodic tasks of the server continue after failures."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage_server.background import PeriodicTask, TaskOutcomes, run_periodically


class FailingTask:
    """A periodic task whose first runs fail, and which stops the server after the last run."""

    def __init__(self, failing: int, total: int) -> None:
        self.runs = 0
        self.stopping = asyncio.Event()
        self._failing, self._total = failing, total

    async def run_once(self) -> None:
        self.runs += 1
        if self.runs == self._total:
            self.stopping.set()
        if self.runs <= self._failing:
            raise WorldError("the disk is full", transient=True)


async def events_of(failing: int, total: int) -> list[str]:
    task = FailingTask(failing, total)
    outcomes = TaskOutcomes()
    with capture_logs() as logs:
        await run_periodically(PeriodicTask("test", 0.0, task.run_once), task.stopping, outcomes)
    assert task.runs == total
    assert outcomes.failures == {"test": failing}
    assert outcomes.last_success_s.keys() == ({"test"} if failing < total else set())
    return [line["event"] for line in logs]


async def test_failed_run_does_not_end_the_task() -> None:
    assert await events_of(failing=1, total=3) == ["duty failed", "duty works again"]


async def test_lasting_failure_does_not_fill_the_log() -> None:
    events = await events_of(failing=1000, total=1000)

    assert 1 < len(events) <= 10


async def test_working_task_logs_nothing() -> None:
    assert await events_of(failing=0, total=5) == []


async def test_stopping_server_does_not_wait_for_next_run() -> None:
    task = FailingTask(failing=0, total=1)

    async with asyncio.timeout(5):
        await run_periodically(PeriodicTask("test", 3600.0, task.run_once), task.stopping, TaskOutcomes())

    assert task.runs == 1
