"""Enrolment secrets of glideins that wait long in batch queues are renewed, until the pilot has used one."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.site_director.director import SiteDirector
from support.director_grid import DirectorGrid

HOUR = timedelta(hours=1)
TOKEN_SETTINGS = {"credential_s": 2 * HOUR.total_seconds()}


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def director_with_waiting_glidein(grid: DirectorGrid) -> SiteDirector:
    grid.link.waiting = 1
    director = grid.director(**TOKEN_SETTINGS)
    await director.run_once()
    grid.link.waiting = 0
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.WAITING)
    began = grid.now.timestamp()
    os.utime(grid.folder / "pilots" / "stamp0" / "token", (began, began))
    return director


def token(grid: DirectorGrid) -> str:
    return (grid.folder / "pilots" / "stamp0" / "token").read_text()


async def test_token_of_a_waiting_glidein_is_renewed_at_half_its_lifetime(grid: DirectorGrid) -> None:
    director = await director_with_waiting_glidein(grid)
    for number, minutes in ((1, 60), (2, 1), (2, 59), (3, 2)):
        grid.now += timedelta(minutes=minutes)
        await director.run_once()
        assert token(grid) == (f"token {number} of stamp0" if number > 1 else "token of stamp0")
    assert grid.link.lifetimes_s == [7200] * 3
    assert grid.batch.renewed == ["token 2 of stamp0", "token 3 of stamp0"]
    assert (grid.folder / "pilots" / "stamp0" / "token").stat().st_mode & 0o077 == 0


async def test_token_that_could_not_be_delivered_is_renewed_again(grid: DirectorGrid, tmp_path: Path) -> None:
    director = await director_with_waiting_glidein(grid)
    grid.batch.fails_renew = True
    grid.now += 2 * HOUR
    await director.run_once()
    assert grid.batch.renewed == []
    grid.batch.fails_renew = False
    await director.run_once()
    await director.run_once()
    assert grid.batch.renewed == ["token 3 of stamp0"]


async def test_renewal_for_an_unknown_pilot_is_retried_at_the_usual_interval(grid: DirectorGrid) -> None:
    director = await director_with_waiting_glidein(grid)
    del grid.link.registered["stamp0"]
    renewals = 0
    for minutes, more in ((61, 1), (1, 0), (58, 0), (2, 1)):
        grid.now += timedelta(minutes=minutes)
        await director.run_once()
        renewals += more
        assert grid.link.calls.count("renew_credentials") == renewals
    assert token(grid) == "token of stamp0"


async def test_restarted_director_knows_the_age_of_tokens(grid: DirectorGrid) -> None:
    await director_with_waiting_glidein(grid)
    grid.now += timedelta(minutes=61)
    await grid.director(**TOKEN_SETTINGS).run_once()
    assert grid.batch.renewed == ["token 2 of stamp0"]


@pytest.mark.parametrize("state", [GlideinState.RUNNING, GlideinState.UNKNOWN])
async def test_token_is_renewed_only_for_waiting_glideins(grid: DirectorGrid, state: GlideinState) -> None:
    director = await director_with_waiting_glidein(grid)
    grid.batch.statuses["fake.1"] = GlideinStatus(state)
    grid.now += 5 * HOUR
    await director.run_once()
    assert token(grid) == "token of stamp0"


async def test_used_secret_is_not_renewed(grid: DirectorGrid) -> None:
    director = await director_with_waiting_glidein(grid)
    (grid.folder / "pilots" / "stamp0" / "token").unlink()  # as its pilot does when it has enrolled
    grid.now += 5 * HOUR
    await director.run_once()
    assert not (grid.folder / "pilots" / "stamp0" / "token").exists()
    assert "renew_credentials" not in grid.link.calls
