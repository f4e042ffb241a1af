"""Races in which a job router holds the original or a copy."""

from __future__ import annotations

import pytest

from pilotage.errors import NotFoundError
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.retention import remove_finished
from pilotage_server.operations.routing.route_jobs import load_routable_jobs
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.races import REPEATABLE, SITES, A, B, C, PilotedJob, race_of, start_copy, start_race
from support.routers import Router, a_copy, open_jobs, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def routed_job_beaten_by_copy(grid: Grid, router: Router) -> int:
    """Return a job that ran at another server and whose copy has won."""
    (job_id,) = grid.submit(attributes=REPEATABLE)
    router.take(job_id, target="elsewhere.example.org")
    router.start(job_id)
    start_copy(grid, job_id)
    PilotedJob(grid, B).finish()
    return job_id


def test_winning_copy_makes_routed_job_unwanted(grid: Grid, router: Router) -> None:
    job_id = routed_job_beaten_by_copy(grid, router)
    assert grid.job(job_id).state is JobState.DONE
    assert router.unwanted() == [(job_id, 1)]
    router.finish(job_id)
    assert router.unwanted() == []
    assert grid.history(job_id) == [(1, "exited"), (2, "exited")]


def test_routed_job_is_fenced_until_router_reports_its_end(grid: Grid, router: Router) -> None:
    job_id = routed_job_beaten_by_copy(grid, router)
    assert grid.job(job_id).is_fenced
    router.report(job_id, Outcome.KILLED)
    assert not grid.job(job_id).is_fenced
    grid.change(JobChange.RESCHEDULE, job_id)
    assert grid.start_pilot(C).claim() == [job_id]


def test_won_job_is_kept_until_router_reports_its_end(grid: Grid, router: Router) -> None:
    job_id = routed_job_beaten_by_copy(grid, router)
    grid.pass_time(days=400)
    grid.write(remove_finished)
    assert grid.job(job_id).state is JobState.DONE
    router.report(job_id, Outcome.KILLED)
    grid.write(remove_finished)
    with pytest.raises(NotFoundError):
        grid.job(job_id)


def test_giving_up_router_releases_won_job(grid: Grid, router: Router) -> None:
    job_id = routed_job_beaten_by_copy(grid, router)
    router.stop()
    assert open_jobs(router.give_up().copies) == [job_id]
    assert not grid.job(job_id).is_fenced


def test_routed_copy_can_win(grid: Grid, router: Router) -> None:
    original, copy_id = start_race(grid)
    assert router.take(copy_id, target=B) == [copy_id]
    router.start(copy_id)
    router.finish(copy_id)
    assert (original.job.state, str(original.job.queue)) == (JobState.DONE, B)
    assert race_of(grid, original.job.id).race.winner == copy_id
    assert original.has_lost_lease()


def test_copy_is_not_routed_to_site_of_original(grid: Grid, router: Router) -> None:
    original, copy_id = start_race(grid)
    assert original.job.queue is not None
    assert router.take(copy_id, target=str(original.job.queue)) == []


def test_routable_copy_has_wanted_and_banned_sites(grid: Grid) -> None:
    (job_id,) = grid.submit(attributes=REPEATABLE, sites=("A", "B"))
    PilotedJob(grid, A)
    copy_id = start_copy(grid, job_id).copy_id
    (routable,) = grid.read(lambda transaction, state: list(load_routable_jobs(transaction, state, [copy_id])))
    assert (routable.description.sites, routable.description.banned_sites) == (("A", "B"), ("A",))


def test_job_with_sites_of_tree_is_not_routed_to_server(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes=REPEATABLE, sites=("a", "B"))
    server = "elsewhere.example.org"
    assert router.refusal(a_copy(job_id, server)) == "the job wants sites that are here"
    PilotedJob(grid, A)
    copy_id = start_copy(grid, job_id).copy_id
    assert router.refusal(a_copy(copy_id, server)) == "the job wants sites that are here"
    assert router.take(copy_id, target=B) == [copy_id]


@pytest.mark.parametrize("sites", [("A", "Far"), ("ELSEWHERE.example.org", "A"), ("any",)])
def test_job_with_foreign_sites_may_be_routed_to_server(grid: Grid, router: Router, sites: tuple[str, ...]) -> None:
    (job_id,) = grid.submit(sites=sites)
    assert router.take(job_id, target="elsewhere.example.org") == [job_id]


def test_copy_is_not_routed_to_server_of_original(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes=REPEATABLE)
    router.take(job_id, target="elsewhere.example.org")
    router.start(job_id)
    copy_id = start_copy(grid, job_id).copy_id
    why = router.refusal(a_copy(copy_id, "elsewhere.example.org"))
    assert why == "the job wants to avoid server elsewhere.example.org"
    assert router.take(copy_id, target="another.example.org") == [copy_id]
