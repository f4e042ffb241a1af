"""Deeds beside an agent's rounds, of which some fail."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from pilotage.errors import ServerUnreachableError
from pilotage_agents.router.errands import Errands


async def meets_what_nobody_has_foreseen() -> None:
    raise RecursionError("a path without end")


async def finds_no_server() -> None:
    raise ServerUnreachableError("no server")


async def test_what_nobody_has_foreseen_of_one_deed_breaks_no_round_off() -> None:
    errands, done = Errands(10.0), asyncio.Event()

    async def sets() -> None:
        done.set()

    with capture_logs() as logs:
        errands.begin("odd", meets_what_nobody_has_foreseen)
        errands.begin("other", sets)
        await errands.grace()
    assert done.is_set()
    assert not len(errands)
    (line,) = logs
    assert (line["event"], line["log_level"], line["errand"]) == (
        "errand met an error of the agent's own",
        "error",
        "odd",
    )
    assert isinstance(line["exc_info"], RecursionError)


async def test_a_server_that_cannot_be_asked_ends_the_round() -> None:
    errands = Errands(10.0)
    errands.begin("one", finds_no_server)
    with pytest.raises(ServerUnreachableError):
        await errands.grace()
    errands.begin("one", finds_no_server)
    errands.begin("two", finds_no_server)
    with pytest.raises(ExceptionGroup) as raised:
        await errands.all_done()
    assert len(raised.value.exceptions) == 2
    await errands.grace()
