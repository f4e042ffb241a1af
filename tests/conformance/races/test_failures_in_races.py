"""Failures in races: a failed attempt, and the failure of the whole job."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobPolicy
from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.heartbeats import ReceivedHeartbeat, report_states
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.races import REPEATABLE, SITES, A, B, PilotedJob, race_of, start_copy, start_race
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def test_failed_copy_ends_only_itself(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    PilotedJob(grid, B).finish(exit_code=1)
    assert grid.job(copy_id).state is JobState.FAILED
    assert (original.job.state, original.job.race) == (JobState.RUNNING, 0)
    assert race_of(grid, original.job.id).race.outcome == "all copies failed"
    assert original.finish().accepted
    assert original.job.state is JobState.DONE


def test_failed_original_is_done_when_a_copy_wins(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    assert original.finish(exit_code=3).accepted
    assert (original.job.state, original.job.ended, original.job.reason) == (JobState.RACING, None, "exit code 3")
    copy.finish()
    assert (original.job.state, original.job.exit_code) == (JobState.DONE, 0)


def test_failed_original_keeps_its_failure_when_no_copy_wins(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    original.finish(exit_code=3)
    grid.pass_time(minutes=1)
    copy.finish(exit_code=4)
    job = original.job
    assert (job.state, job.reason, job.exit_code) == (JobState.FAILED, "exit code 3", 3)
    assert job.ended is not None
    assert race_of(grid, job.id).race.outcome == "no attempt ended well"


def test_original_and_copy_fail_in_one_call(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    beats = [
        (
            runner.pilot.identity,
            ReceivedHeartbeat(reports=(JobReport(runner.match.job_id, 1, outcome=Outcome.EXITED, exit_code=3),)),
        )
        for runner in (original, copy)
    ]
    grid.write(lambda transaction, state: report_states(transaction, state, beats))
    assert (original.job.state, copy.job.state) == (JobState.FAILED, JobState.FAILED)


def test_original_with_exhausted_attempts_waits_for_copies(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    for number in range(3):
        last = original if number == 0 else PilotedJob(grid, A)
        last.pilot.report(last.match, Outcome.START_FAILED, reason="no disk")
    job = original.job
    assert (job.state, "3 attempts were lost" in job.reason) == (JobState.RACING, True)
    copy.finish()
    assert original.job.state is JobState.DONE


@pytest.mark.parametrize("held", [False, True])
def test_original_fails_when_no_copy_runs(grid: Grid, held: bool) -> None:
    original, copy_id = start_race(grid)
    if held:
        grid.change(JobChange.HOLD, copy_id)
    original.finish(exit_code=3)
    job, copy = original.job, grid.job(copy_id)
    assert (job.state, job.reason, job.exit_code, job.race) == (JobState.FAILED, "exit code 3", 3, 0)
    why = f"it lost the race for job {job.id}: that has failed, and no copy runs"
    assert (copy.state, copy.reason) == (JobState.REMOVED, why)
    assert race_of(grid, job.id).race.ended is not None


@pytest.mark.parametrize("change", [JobChange.HOLD, JobChange.REMOVE])
def test_original_fails_when_last_running_copy_is_stopped(grid: Grid, change: JobChange) -> None:
    original, copy_id = start_race(grid)
    PilotedJob(grid, B)
    waiting = start_copy(grid, original.job.id).copy_id
    original.finish(exit_code=3)
    assert original.job.state is JobState.RACING
    grid.change(change, copy_id)
    assert (original.job.state, original.job.reason) == (JobState.FAILED, "exit code 3")
    assert {grid.job(job_id).state for job_id in (copy_id, waiting)} == {JobState.REMOVED}


def test_original_fails_when_last_running_copy_is_evicted(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    copy = PilotedJob(grid, B)
    original.finish(exit_code=3)
    copy.pilot.report(copy.match, Outcome.EVICTED)
    assert (original.job.state, grid.job(copy_id).state) == (JobState.FAILED, JobState.REMOVED)


def test_held_copy_does_not_affect_running_original(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    grid.change(JobChange.HOLD, copy_id)
    assert (original.job.state, grid.job(copy_id).state) == (JobState.RUNNING, JobState.HELD)
    original.finish()
    assert (original.job.state, grid.job(copy_id).state) == (JobState.DONE, JobState.REMOVED)


def test_copy_removed_at_creation_does_not_delay_failure(grid: Grid) -> None:
    late = int(grid.clock().timestamp()) + 60
    grid.submit(attributes=REPEATABLE, policy=JobPolicy(periodic_remove=f"QDate > {late}"))
    original = PilotedJob(grid, A)
    grid.pass_time(minutes=2)
    copy_id = start_copy(grid, original.job.id).copy_id
    assert (grid.job(copy_id).state, original.job.state) == (JobState.REMOVED, JobState.RUNNING)
    original.finish(exit_code=3)
    assert original.job.state is JobState.FAILED
