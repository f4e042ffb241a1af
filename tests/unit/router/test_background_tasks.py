"""Deeds beside an agent's rounds, of which some fail."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from pilotage.errors import ServerUnreachableError
from pilotage_agents.router.tasks import BackgroundTasks


async def meets_what_nobody_has_foreseen() -> None:
    raise RecursionError("a path without end")


async def finds_no_server() -> None:
    raise ServerUnreachableError("no server")


async def test_what_nobody_has_foreseen_of_one_deed_breaks_no_round_off() -> None:
    errands, done = BackgroundTasks(10.0), asyncio.Event()

    async def sets() -> None:
        done.set()

    with capture_logs() as logs:
        errands.start("odd", meets_what_nobody_has_foreseen)
        errands.start("other", sets)
        await errands.wait_grace()
    assert done.is_set()
    assert not len(errands)
    (line,) = logs
    assert (line["event"], line["log_level"], line["task"]) == (
        "unexpected error in background task",
        "error",
        "odd",
    )
    assert isinstance(line["exc_info"], RecursionError)


async def test_a_server_that_cannot_be_asked_ends_the_round() -> None:
    errands = BackgroundTasks(10.0)
    errands.start("one", finds_no_server)
    with pytest.raises(ServerUnreachableError):
        await errands.wait_grace()
    errands.start("one", finds_no_server)
    errands.start("two", finds_no_server)
    with pytest.raises(ExceptionGroup) as raised:
        await errands.wait_all()
    assert len(raised.value.exceptions) == 2
    await errands.wait_grace()
