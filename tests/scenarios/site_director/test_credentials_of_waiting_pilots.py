"""Tokens of pilots that wait long in their batch queues are renewed, so that each is of use when its pilot starts."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.site_director.director import SiteDirector
from support.director_grid import DirectorGrid

HOUR = timedelta(hours=1)
TOKENS_LIVE = {"default_wall_time_s": 1000, "credential_s": 2 * HOUR.total_seconds()}


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def a_director_with_a_waiting_pilot(grid: DirectorGrid) -> SiteDirector:
    grid.link.waiting = 1
    director = grid.director(**TOKENS_LIVE)
    await director.run_once()
    grid.link.waiting = 0
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.WAITING)
    began = grid.now.timestamp()
    os.utime(grid.folder / "pilots" / "stamp0" / "token", (began, began))
    return director


def token(grid: DirectorGrid) -> str:
    return (grid.folder / "pilots" / "stamp0" / "token").read_text()


async def test_a_pilot_that_waits_gets_a_new_token_when_half_of_its_patience_is_over(grid: DirectorGrid) -> None:
    director = await a_director_with_a_waiting_pilot(grid)
    for number, minutes in ((1, 60), (2, 1), (2, 59), (3, 2)):
        grid.now += timedelta(minutes=minutes)
        await director.run_once()
        assert token(grid) == (f"token {number} of stamp0" if number > 1 else "token of stamp0")
    assert grid.link.lifetimes_s == [1000 + 7200] * 3
    assert grid.batch.renewed == ["token 2 of stamp0", "token 3 of stamp0"]
    assert (grid.folder / "pilots" / "stamp0" / "token").stat().st_mode & 0o077 == 0


async def test_a_token_that_could_not_be_brought_is_renewed_again(grid: DirectorGrid, tmp_path: Path) -> None:
    director = await a_director_with_a_waiting_pilot(grid)
    grid.batch.keeps_tokens = True
    grid.now += 2 * HOUR
    await director.run_once()
    assert grid.batch.renewed == []
    grid.batch.keeps_tokens = False
    await director.run_once()
    await director.run_once()
    assert grid.batch.renewed == ["token 3 of stamp0"]


async def test_a_pilot_that_the_server_knows_no_more_is_asked_for_no_more_often_than_others(grid: DirectorGrid) -> None:
    director = await a_director_with_a_waiting_pilot(grid)
    del grid.link.registered["stamp0"]
    asked = 0
    for minutes, more in ((61, 1), (1, 0), (58, 0), (2, 1)):
        grid.now += timedelta(minutes=minutes)
        await director.run_once()
        asked += more
        assert grid.link.calls.count("renew_credentials") == asked
    assert token(grid) == "token of stamp0"


async def test_the_next_director_knows_how_old_tokens_are(grid: DirectorGrid) -> None:
    await a_director_with_a_waiting_pilot(grid)
    grid.now += timedelta(minutes=61)
    await grid.director(**TOKENS_LIVE).run_once()
    assert grid.batch.renewed == ["token 2 of stamp0"]


@pytest.mark.parametrize("state", [GlideinState.RUNNING, GlideinState.UNKNOWN])
async def test_a_pilot_that_does_not_wait_keeps_its_token(grid: DirectorGrid, state: GlideinState) -> None:
    director = await a_director_with_a_waiting_pilot(grid)
    grid.batch.statuses["fake.1"] = GlideinStatus(state)
    grid.now += 5 * HOUR
    await director.run_once()
    assert token(grid) == "token of stamp0"
