"""Races in which a job router holds the job or its copy, on every database."""

from __future__ import annotations

import pytest

from pilotage_server.core.jobs import JobState
from pilotage_server.storage.engine import Database
from support.grid import Grid
from support.races import REPEATABLE, SITES, B, Runner, race_of, start_copy, start_race
from support.routers import Router
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


@pytest.fixture
def router(grid: Grid) -> Router:
    return Router(grid).begin()


def test_a_copy_beats_a_job_that_runs_on_another_server_where_it_is_wanted_no_more(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes=REPEATABLE)
    router.take(job_id, target="elsewhere.example.org")
    router.start(job_id)
    copy_id = start_copy(grid, job_id).copy_id
    copy = Runner(grid, B)
    assert copy.job.id == copy_id
    copy.ends()
    assert grid.job(job_id).state is JobState.DONE
    assert router.unwanted() == [(job_id, 1)]
    router.finish(job_id)
    assert router.unwanted() == []
    assert grid.history(job_id) == [(1, "exited"), (2, "exited")]


def test_a_copy_that_goes_along_a_route_wins_like_any_other(grid: Grid, router: Router) -> None:
    original, copy_id = start_race(grid)
    assert router.take(copy_id, target=B) == [copy_id]
    router.start(copy_id)
    router.finish(copy_id)
    assert (original.job.state, str(original.job.queue)) == (JobState.DONE, B)
    assert race_of(grid, original.job.id).race.winner == copy_id
    assert original.is_told_to_stop()


def test_a_copy_does_not_go_along_a_route_to_the_site_of_its_original(grid: Grid, router: Router) -> None:
    original, copy_id = start_race(grid)
    assert original.job.queue is not None
    assert router.take(copy_id, target=str(original.job.queue)) == []
