"""Counters of jobs with HTCondor's meaning: starts, wall clock, suspended time, holds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.attempts import JobHold, Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import HoldCode, JobState
from pilotage_server.storage.database.engine import Database
from support.grid import PolicyGrid
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


def test_run_time_is_counted_when_the_run_ends(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = grid.run_for(pilot, 1800)
    assert (grid.job(job_id).starts, grid.job(job_id).wall_clock) == (1, timedelta(0))
    pilot.report(match, Outcome.EVICTED, wall_s=1700.0, suspended_s=90.0)
    assert grid.job(job_id).wall_clock == timedelta(seconds=1790)
    pilot.report(grid.run_for(pilot, 600), Outcome.EVICTED)
    after = grid.job(job_id)
    assert (after.starts, after.wall_clock) == (2, timedelta(seconds=2390))


def test_hold_after_a_run_adds_no_run_time(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 600), Outcome.EVICTED)
    grid.pass_time(seconds=3600)
    for change in (JobChange.HOLD, JobChange.RELEASE, JobChange.REMOVE):
        grid.change(change, job_id)
        assert grid.job(job_id).wall_clock == timedelta(seconds=600)


def test_reported_run_time_is_bounded_by_time_since_match(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 100), Outcome.EVICTED, wall_s=1e300)
    assert grid.job(job_id).wall_clock == timedelta(seconds=100)


def test_job_that_never_started_has_no_run_time(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(seconds=100)
    pilot.report(match, Outcome.DECLINED, reason="its disk is full")
    job = grid.job(job_id)
    assert (job.starts, job.wall_clock, job.state_since) == (0, timedelta(0), None)


def test_suspended_time_is_counted_and_part_of_wall_clock(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = grid.run_for(pilot, 60)
    pilot.report(match, state=JobState.SUSPENDED)
    grid.pass_time(seconds=300)
    assert grid.job(job_id).state_since == grid.clock() - timedelta(seconds=300)
    pilot.report(match, state=JobState.RUNNING)
    grid.pass_time(seconds=60)
    pilot.report(match, Outcome.EVICTED)
    job = grid.job(job_id)
    assert (job.suspended, job.wall_clock) == (timedelta(seconds=300), timedelta(seconds=420))


def test_readopted_attempt_is_not_counted_twice(
    grid: PolicyGrid,
) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    grid.pass_time(minutes=30)
    lost = grid.job(job_id)
    assert (lost.state, lost.wall_clock) == (JobState.WAITING, timedelta(minutes=30))
    grid.pass_time(minutes=10)
    pilot.report(match, Outcome.EXITED, exit_code=0, wall_s=2400.0)
    job = grid.job(job_id)
    assert (job.state, job.starts, job.wall_clock) == (JobState.DONE, 1, timedelta(minutes=40))


def test_jobs_held_together_keep_separate_counts(grid: PolicyGrid) -> None:
    first, second = grid.submit(count=2)
    pilot = grid.start_pilot()
    for _ in range(2):
        pilot.start(pilot.take())
        grid.pass_time(seconds=100)
    grid.change(JobChange.HOLD, first, second)
    jobs = grid.jobs([first, second])
    assert [jobs[job_id].wall_clock.total_seconds() for job_id in (first, second)] == [200, 100]
    assert {job.hold_code for job in jobs.values()} == {HoldCode.USER_REQUEST}


def test_reschedule_resets_counters(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 100), Outcome.EVICTED)
    grid.change(JobChange.HOLD, job_id)
    grid.change(JobChange.RESCHEDULE, job_id)
    job = grid.job(job_id)
    assert (job.starts, job.wall_clock, job.holds, job.hold_code) == (0, timedelta(0), 0, None)


def test_job_submitted_on_hold_has_its_hold_code(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(hold=True)
    job = grid.job(job_id)
    assert (job.hold_code, job.hold_subcode, job.hold_history.by_reason()) == (15, 0, {"SubmittedOnHold": 1})


def test_hold_request_of_slot_sets_its_hold_code(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    hold_request = JobHold("too much memory", 102)
    assert pilot.report(grid.run_for(pilot, 60), Outcome.EVICTED, hold=hold_request, wall_s=60.0).accepted
    job = grid.job(job_id)
    assert (job.state, job.reason) == (JobState.HELD, "too much memory")
    assert (job.hold_code, job.hold_subcode, job.lease_until) == (HoldCode.STARTD_HELD_JOB, 102, None)
    assert (job.wall_clock, grid.history(job_id)) == (timedelta(seconds=60), [(1, "evicted")])
    grid.change(JobChange.RELEASE, job_id)
    assert pilot.take().job_id == job_id
