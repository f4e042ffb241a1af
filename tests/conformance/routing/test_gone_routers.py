"""Job routers that are gone: operators give up their jobs, and their records are removed after the retention."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import LeadershipLostError, NotFoundError, StateConflictError
from pilotage.values.attempts import Outcome
from pilotage.values.routing import PublishedRoutes, RouteOutline
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.retention import remove_gone_routers
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.routing.route_jobs import list_routes, put_routes
from support.grid import Grid
from support.jobs import an_operator
from support.routers import Router, a_copy, grid, open_jobs, router

__all__ = ["grid", "router"]


def test_giving_up_router_releases_its_jobs(grid: Grid, router: Router) -> None:
    held, running, done = grid.submit(count=3)
    pilot = grid.start_pilot()
    router.take(held, running, done)
    router.start(running)
    router.finish(done)
    grid.change(JobChange.RESCHEDULE, held)
    router.stop()
    given_up = router.give_up()
    assert (open_jobs(given_up.copies), given_up.more) == ([held, running], False)
    assert [grid.job(job_id).state for job_id in (held, running, done)] == ["WAITING", "WAITING", "DONE"]
    assert sorted(pilot.claim() + pilot.claim()) == [held, running]
    assert sorted(router.begin().unwanted()) == [(held, 1), (running, 1)], "a router that comes back stops its old jobs"


def test_active_router_cannot_be_given_up(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    with pytest.raises(StateConflictError, match="job router job router of sky is running at here"):
        router.give_up()
    assert grid.job(job_id).state is JobState.MATCHED


def test_unknown_router_cannot_be_given_up(grid: Grid, router: Router) -> None:
    router.stop()
    with pytest.raises(NotFoundError, match="there is no job router job router of sky"):
        router.give_up()


def test_late_reports_of_given_up_router_change_nothing(grid: Grid, router: Router) -> None:
    waiting, rerouted = grid.submit(count=2)
    router.take(waiting, rerouted)
    router.stop()
    router.give_up()
    other = Router(grid, "another").begin()
    assert other.take(rerouted) == [rerouted]
    results = router.begin().finish(waiting, rerouted, exit_code=3, node="far").results
    assert [result.accepted for result in results] == [True, True], "no router has to stop them"
    assert router.unwanted() == []
    assert [(grid.job(job_id).state, grid.job(job_id).attempt) for job_id in (waiting, rerouted)] == [
        (JobState.WAITING, 1),
        (JobState.MATCHED, 2),
    ]
    assert grid.job(rerouted).node == ""
    assert other.finish(rerouted).results[0].accepted
    assert grid.history(rerouted) == [(1, "exited"), (2, "exited")]


def test_giving_up_during_report_gives_each_attempt_one_end(grid: Grid, router: Router) -> None:
    done, lost = grid.submit(count=2)
    router.take(done, lost)
    report = router.a_report(done, Outcome.EXITED, exit_code=0)
    router.stop()
    with pytest.raises(LeadershipLostError):
        router.send_reports(report)
    assert open_jobs(router.give_up().copies) == [done, lost]
    router.begin()
    assert router.route(a_copy(lost))[0].attempt == 2
    router.send_reports(report)
    assert router.copies()[0].copy.key == (lost, 1), "the end of the first attempt is not reported yet"
    assert [grid.job(job_id).state for job_id in (done, lost)] == [JobState.WAITING, JobState.MATCHED]


def router_process(grid: Grid, name: str = "job router of sky") -> Router:
    """Return a router that is the leader for an hour and has published a route."""
    router = Router(grid, name)
    grid.database.write(lambda transaction: take_leadership(transaction, router.turn, timedelta(hours=1), "here"))
    table = PublishedRoutes((RouteOutline("north", "server far:1", max_jobs=1),))
    grid.database.write(lambda transaction: put_routes(transaction, an_operator(), router.turn, table))
    return router


def pass_retention(grid: Grid) -> None:
    grid.clock.advance(grid.state.rules.retention.finished_jobs + timedelta(hours=2))


def clean(grid: Grid) -> int:
    return grid.write(remove_gone_routers)


def router_names(grid: Grid) -> list[str]:
    return [routes.router for routes in grid.read(lambda transaction, _: list_routes(transaction))]


@pytest.mark.any_database
def test_removes_router_after_retention(grid: Grid) -> None:
    router_process(grid)
    assert clean(grid) == 0
    pass_retention(grid)
    router_process(grid, "another")
    assert (clean(grid), clean(grid)) == (1, 0)
    assert router_names(grid) == ["another"]


@pytest.mark.any_database
def test_keeps_router_that_renews_its_leadership(grid: Grid) -> None:
    router = router_process(grid)
    pass_retention(grid)
    router.begin()
    assert clean(grid) == 0
    assert router_names(grid) == [router.name]


@pytest.mark.any_database
def test_keeps_router_until_its_routed_jobs_end(grid: Grid) -> None:
    router = router_process(grid)
    held, taken = grid.submit(count=2)
    router.begin().take(held, taken)
    grid.change(JobChange.REMOVE, taken)
    router.stop()
    pass_retention(grid)
    assert clean(grid) == 0
    router.begin().finish(held)
    router.stop()
    assert clean(grid) == 0, "the end of the other routed job is not reported"
    router.begin().finish(taken)
    router.stop()
    assert clean(grid) == 1
    assert router_names(grid) == []
