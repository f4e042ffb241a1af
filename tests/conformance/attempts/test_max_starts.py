"""Jobs that may start once on every database: no second start, whatever ends the first, and a reason for the owner."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.virtual_clock import VirtualClock

NO_SECOND = "; the job may have started, and its max_starts = 1 permits no second start"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def state_and_reason(grid: Grid, job: int) -> tuple[JobState, str]:
    record = grid.job(job)
    return record.state, record.reason


@pytest.mark.parametrize("has_started", [True, False])
def test_lost_lease_ends_the_job_even_without_a_reported_start(grid: Grid, has_started: bool) -> None:
    (job,) = grid.submit(max_starts=1)
    pilot = grid.start_pilot()
    match = pilot.take()
    if has_started:
        pilot.start(match)
    grid.pass_time(minutes=21)
    assert state_and_reason(grid, job) == (JobState.FAILED, f"pilot {pilot.stamp} was silent{NO_SECOND}")
    assert NO_SECOND in grid.why(job).summary
    assert grid.start_pilot().claim() == []
    late = pilot.report(match, Outcome.EXITED, exit_code=0)
    assert (late.accepted, grid.job(job).state) == (False, JobState.FAILED)


def test_job_without_limit_waits_again_after_a_lost_lease(grid: Grid) -> None:
    (job,) = grid.submit()
    grid.start_pilot().take()
    grid.pass_time(minutes=21)
    assert grid.job(job).state is JobState.WAITING


@pytest.mark.parametrize("outcome", [Outcome.EVICTED, Outcome.KILLED, Outcome.OUTPUT_LOST])
def test_started_job_that_its_pilot_gives_back_ends(grid: Grid, outcome: Outcome) -> None:
    (job,) = grid.submit(max_starts=1)
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    pilot.report(match, outcome, reason="the node is needed", started=grid.clock())
    state, reason = state_and_reason(grid, job)
    assert (state, reason.endswith(NO_SECOND)) == (JobState.FAILED, True)
    assert "the node is needed" in reason


@pytest.mark.parametrize("outcome", [Outcome.DECLINED, Outcome.EVICTED, Outcome.START_FAILED])
def test_job_that_surely_has_not_started_waits_again(grid: Grid, outcome: Outcome) -> None:
    (job,) = grid.submit(max_starts=1)
    pilot = grid.start_pilot()
    pilot.report(pilot.take(), outcome, reason="the slot is gone")
    assert grid.job(job).state is JobState.WAITING
    other = grid.start_pilot()
    match = other.take()
    other.start(match)
    other.finish(match)
    assert (grid.job(job).state, grid.job(job).starts) == (JobState.DONE, 1)


@pytest.mark.parametrize("has_started", [True, False])
def test_release_of_a_job_that_was_held_at_a_pilot_ends_it(grid: Grid, has_started: bool) -> None:
    (job,) = grid.submit(max_starts=1)
    pilot = grid.start_pilot()
    match = pilot.take()
    if has_started:
        pilot.start(match)
    grid.change(JobChange.HOLD, job)
    grid.clock.advance(timedelta(hours=1))
    grid.change(JobChange.RELEASE, job)
    state, reason = state_and_reason(grid, job)
    assert (state, reason.endswith(NO_SECOND)) == (JobState.FAILED, True)


def test_job_held_before_its_match_starts_after_its_release(grid: Grid) -> None:
    (job,) = grid.submit(max_starts=1, hold=True)
    grid.change(JobChange.RELEASE, job)
    assert grid.start_pilot().claim() == [job]


def test_owner_may_order_another_start(grid: Grid) -> None:
    (job,) = grid.submit(max_starts=1)
    pilot = grid.start_pilot()
    pilot.finish(pilot.take(), exit_code=1)
    grid.change(JobChange.RESCHEDULE, job)
    assert grid.start_pilot().claim() == [job]


def test_limit_of_two_permits_one_more_start(grid: Grid) -> None:
    (job,) = grid.submit(max_starts=2)
    for expected in (JobState.WAITING, JobState.FAILED):
        grid.start_pilot().take()
        grid.pass_time(minutes=21)
        assert grid.job(job).state is expected
    assert "may have started 2 times" in grid.job(job).reason
