"""Operators give job routers up that never answer again, on every database; what they held is free."""

from __future__ import annotations

import pytest

from pilotage.errors import LeadershipLostError, NotFoundError, StateConflictError
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from support.grid import Grid
from support.routers import Router, a_copy, grid, open_jobs, router

__all__ = ["grid", "router"]


def test_a_router_that_is_given_up_frees_its_jobs(grid: Grid, router: Router) -> None:
    held, running, done = grid.submit(count=3)
    pilot = grid.start_pilot()
    router.take(held, running, done)
    router.start(running)
    router.finish(done)
    grid.change(JobChange.RESCHEDULE, held)
    router.stop()
    given_up = router.give_up()
    assert (open_jobs(given_up.copies), given_up.more) == ([held, running], False)
    assert [grid.job(each).state for each in (held, running, done)] == ["WAITING", "WAITING", "DONE"]
    assert sorted(pilot.claim() + pilot.claim()) == [held, running]
    assert sorted(router.begin().unwanted()) == [(held, 1), (running, 1)], "should it come back, it hears of it"


def test_a_router_that_is_there_cannot_be_given_up(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    with pytest.raises(StateConflictError, match="job router router of sky is running at here"):
        router.give_up()
    assert grid.job(job_id).state is JobState.MATCHED


def test_a_router_that_nobody_knows_cannot_be_given_up(grid: Grid, router: Router) -> None:
    router.stop()
    with pytest.raises(NotFoundError, match="there is no job router router of sky"):
        router.give_up()


def test_the_word_of_a_router_that_was_given_up_comes_too_late(grid: Grid, router: Router) -> None:
    waits, elsewhere = grid.submit(count=2)
    router.take(waits, elsewhere)
    router.stop()
    router.give_up()
    other = Router(grid, "another").begin()
    assert other.take(elsewhere) == [elsewhere]
    results = router.begin().finish(waits, elsewhere, exit_code=3, node="far").results
    assert [each.accepted for each in results] == [True, True], "the copies are no more, and nobody has to stop them"
    assert router.unwanted() == []
    assert [(grid.job(each).state, grid.job(each).attempt) for each in (waits, elsewhere)] == [
        (JobState.WAITING, 1),
        (JobState.MATCHED, 2),
    ]
    assert grid.job(elsewhere).node == ""
    assert other.finish(elsewhere).results[0].accepted
    assert grid.history(elsewhere) == [(1, "exited"), (2, "exited")]


def test_giving_up_amid_a_report_lets_each_copy_have_one_end(grid: Grid, router: Router) -> None:
    done, lost = grid.submit(count=2)
    router.take(done, lost)
    report = router.a_report(done, Outcome.EXITED, exit_code=0)
    router.stop()
    with pytest.raises(LeadershipLostError):
        router.tell(report)
    assert open_jobs(router.give_up().copies) == [done, lost]
    router.begin()
    assert router.route(a_copy(lost))[0].attempt == 2
    router.tell(report)
    assert router.copies()[0].copy.key == (lost, 1), "the end of the first copy is still to be told"
    assert [grid.job(each).state for each in (done, lost)] == [JobState.WAITING, JobState.MATCHED]
