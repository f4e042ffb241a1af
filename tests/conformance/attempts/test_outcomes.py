"""Outcomes that pilots report: in time, late, repeated, or for a job that has changed."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobDescription
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.pilot_calls import Kill
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import a_user
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_finished_job_is_done_and_keeps_exit_code(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    assert pilot.start(match).accepted
    assert grid.job(job_id).state is JobState.RUNNING
    assert pilot.finish(match).accepted
    job = grid.job(job_id)
    assert (job.state, job.exit_code, job.lease_until) == (JobState.DONE, 0, None)
    assert grid.history(job_id) == [(1, "exited")]


def test_nonzero_exit_code_fails_job_with_reason(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.finish(pilot.take(), exit_code=3)
    assert (grid.job(job_id).state, grid.job(job_id).reason) == (JobState.FAILED, "exit code 3")


def test_repeated_outcome_is_confirmed_and_recorded_once(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    assert pilot.finish(match).accepted
    assert pilot.finish(match).accepted
    assert not pilot.finish(match, exit_code=0).refusal
    assert pilot.report(match, Outcome.EVICTED).refusal == "another outcome was recorded before"


@pytest.mark.parametrize("outcome", [Outcome.EVICTED, Outcome.DECLINED])
def test_evicted_and_declined_jobs_wait_without_spending_attempts(grid: Grid, outcome: Outcome) -> None:
    (job_id,) = grid.submit()
    for _ in range(4):
        pilot = grid.start_pilot()
        pilot.report(pilot.take(), outcome, reason="the slot was needed")
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts, job.attempt) == (JobState.WAITING, 0, 4)


def test_third_failed_start_fails_job_and_lists_all_reasons(grid: Grid) -> None:
    (job_id,) = grid.submit()
    for number in range(3):
        pilot = grid.start_pilot()
        pilot.report(pilot.take(), Outcome.START_FAILED, reason=f"disk {number} full")
    job = grid.job(job_id)
    assert job.state is JobState.FAILED
    assert "3 attempts were lost" in job.reason
    assert all(f"disk {number} full" in job.reason for number in range(3))


def test_late_outcome_counts_before_next_attempt(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    assert pilot.finish(match).accepted
    job = grid.job(job_id)
    assert (job.state, job.attempt, job.spent_attempts) == (JobState.DONE, 1, 0)
    assert grid.start_pilot().claim() == []


def test_late_outcome_is_refused_after_next_attempt(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    other = grid.start_pilot()
    second = other.take()
    assert "lease lost" in pilot.finish(match).refusal
    assert "lease lost" in pilot.finish(match).refusal
    assert other.finish(second).accepted
    assert grid.job(job_id).attempt == 2


@pytest.mark.parametrize("change", [JobChange.REMOVE, JobChange.HOLD])
def test_kill_is_ordered_until_pilot_confirms_it(grid: Grid, change: JobChange) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    called_pilots: list[str] = []
    grid.state.command_listeners.append(called_pilots.append)
    grid.change(change, job_id)
    assert called_pilots == [pilot.stamp]
    (kill,) = pilot.request_jobs().commands
    assert isinstance(kill, Kill)
    assert (kill.job_id, kill.attempt) == (job_id, 1)
    state = grid.job(job_id).state
    assert pilot.report(match, Outcome.KILLED).accepted
    assert pilot.report(match, Outcome.KILLED).accepted
    assert pilot.request_jobs().commands == ()
    assert grid.job(job_id).state is state


def test_late_outcome_does_not_end_rescheduled_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    assert pilot.finish(match).accepted
    assert grid.job(job_id).state is JobState.WAITING


def test_late_outcome_does_not_end_edited_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=21)
    grid.write(lambda transaction, state: edit_job(transaction, state, a_user(), job_id, JobDescription("/bin/false")))
    assert not pilot.finish(match).accepted
    assert grid.job(job_id).state is JobState.WAITING


def test_pilot_may_not_report_on_attempt_of_another(grid: Grid) -> None:
    (job_id,) = grid.submit()
    match = grid.start_pilot().take()
    assert "is not this pilot's" in grid.start_pilot().finish(match).refusal
    assert grid.job(job_id).state is JobState.MATCHED
