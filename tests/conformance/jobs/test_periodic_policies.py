"""Periodic hold, release and remove expressions of jobs."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobPolicy
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import Hold, HoldCode, JobCause, JobState
from pilotage_server.storage.database.engine import Database
from support.grid import PolicyGrid, a_slot
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SHORT_JOB = JobPolicy(periodic_remove="LongRunningJob =!= True && RemoteWallClockTime >= 60 * 60")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


# Removal


def test_job_over_its_run_time_is_removed_when_evicted(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=SHORT_JOB)
    pilot = grid.start_pilot()
    match = grid.run_for(pilot, 3600)
    assert grid.evaluate_changed() == []
    assert grid.evaluate_watched() == []
    pilot.report(match, Outcome.EVICTED, reason="its hour is over")
    assert grid.evaluate_changed() == [job_id]
    job = grid.job(job_id)
    assert job.state is JobState.REMOVED
    assert job.reason == ("its periodic_remove became true: LongRunningJob =!= True && RemoteWallClockTime >= 60 * 60")


def test_job_below_its_run_time_waits_after_eviction(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=SHORT_JOB)
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 3599), Outcome.EVICTED)
    assert grid.evaluate_changed() == []
    assert grid.job(job_id).state is JobState.WAITING


def test_run_time_of_policy_is_sum_of_runs(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=SHORT_JOB)
    pilot = grid.start_pilot()
    for _ in range(2):
        assert grid.evaluate_changed() == []
        pilot.report(grid.run_for(pilot, 1800), Outcome.EVICTED)
    assert grid.evaluate_changed() == [job_id]


def test_long_running_job_is_exempt_from_removal(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=SHORT_JOB, attributes={"LongRunningJob": True})
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 36_000), Outcome.EVICTED)
    assert grid.evaluate_changed() == []
    assert grid.evaluate_watched(PolicyWatch.ON_CHANGE) == []
    assert grid.job(job_id).state is JobState.WAITING


def test_bologna_policy_removes_job_that_never_ran(grid: PolicyGrid) -> None:
    policy = JobPolicy(periodic_remove="LongRunningJob =!= True && RemoteWallClockTime < 60 * 60")
    (job_id,) = grid.submit(policy=policy)
    assert grid.job(job_id).state is JobState.REMOVED


def test_policy_of_new_job_applies_before_matching(grid: PolicyGrid) -> None:
    kept, held, gone = (
        grid.submit(policy=JobPolicy(periodic_hold=hold, periodic_remove=remove))[0]
        for hold, remove in ((None, "false || NumJobStarts > 0"), ("JobStatus == 1", None), (None, "JobStatus == 1"))
    )
    assert [grid.job(job_id).state for job_id in (held, gone)] == [JobState.HELD, JobState.REMOVED]
    assert grid.causes(held) == [JobCause.ENQUEUED, JobCause.HELD]
    assert grid.start_pilot().claim(*(a_slot(f"slot{number}") for number in range(3))) == [kept]
    assert grid.state.waiting.waiting() == ()


def test_removal_by_policy_ends_lease_of_running_job(grid: PolicyGrid) -> None:
    policy = JobPolicy(periodic_remove="JobStatus == 2 && time() - EnteredCurrentStatus > 300")
    (job_id,) = grid.submit(policy=policy)
    pilot = grid.start_pilot()
    match = grid.run_for(pilot, 300)
    assert grid.evaluate_watched() == []
    grid.pass_time(seconds=1)
    assert grid.evaluate_watched() == [job_id]
    answer = pilot.beat()
    assert [lost.job_id for lost in answer.lost] == [match.job_id]
    assert grid.history(job_id) == [(1, "removed")]


def test_policy_is_evaluated_at_match_and_at_start(grid: PolicyGrid) -> None:
    matched, started = (
        grid.submit(policy=JobPolicy(periodic_remove=when))[0] for when in ("NumJobMatches > 0", "NumJobStarts > 0")
    )
    assert grid.evaluate_changed() == []
    pilot = grid.start_pilot()
    _, starting = pilot.take(), pilot.take()
    assert grid.evaluate_changed() == [matched]
    pilot.start(starting)
    assert grid.evaluate_changed() == [started]


# Hold and release


def test_holds_by_policy_are_counted_by_reason(grid: PolicyGrid) -> None:
    policy = JobPolicy(
        periodic_hold="NumJobStarts > 0 && JobStatus == 1",
        periodic_hold_reason='strcat("evicted after ", NumJobStarts, " starts")',
        periodic_hold_subcode="40 + NumJobStarts",
    )
    (job_id,) = grid.submit(policy=policy)
    pilot = grid.start_pilot()
    pilot.report(grid.run_for(pilot, 10), Outcome.EVICTED)
    assert grid.evaluate_changed() == [job_id]
    held = grid.job(job_id)
    assert (held.state, held.reason) == (JobState.HELD, "evicted after 1 starts")
    assert (held.hold_code, held.hold_subcode) == (HoldCode.JOB_POLICY, 41)
    grid.change(JobChange.RELEASE, job_id)
    assert grid.job(job_id).hold_code is None
    assert grid.evaluate_changed() == [job_id]
    again = grid.job(job_id)
    assert (again.holds, again.hold_history.by_reason(), again.hold_code) == (2, {"JobPolicy": 2}, 3)
    assert again.hold_history.last == Hold(3, 41, "evicted after 1 starts")


def test_periodic_release_releases_held_job(grid: PolicyGrid) -> None:
    policy = JobPolicy(
        periodic_hold="JobStatus == 1 && NumHolds =?= undefined || NumHolds == 0",
        periodic_release="time() - EnteredCurrentStatus >= 600",
    )
    (job_id,) = grid.submit(policy=policy)
    assert grid.job(job_id).state is JobState.HELD
    grid.pass_time(seconds=599)
    assert grid.evaluate_watched() == []
    grid.pass_time(seconds=1)
    assert grid.evaluate_watched() == [job_id]
    job = grid.job(job_id)
    assert (job.state, grid.state.waiting.count(job.task_queue_id)) == (JobState.WAITING, 1)
    assert grid.causes(job_id) == [JobCause.ENQUEUED, JobCause.HELD, JobCause.RELEASED]


def test_periodic_release_does_not_lift_user_hold(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_release="HoldReasonCode =!= 99"))
    grid.change(JobChange.HOLD, job_id)
    assert grid.evaluate_changed() == []
    assert grid.job(job_id).state is JobState.HELD


def test_periodic_hold_precedes_periodic_remove(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_hold="true", periodic_remove="true"))
    assert grid.job(job_id).state is JobState.HELD
    assert grid.evaluate_changed() == []  # a policy's change is followed by a pause of a minute
    grid.pass_time(seconds=60)
    assert grid.evaluate_changed() == [job_id]
    assert grid.job(job_id).state is JobState.REMOVED


def test_contradicting_policies_act_once_a_minute(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_hold="true", periodic_release="true"))
    states = []
    for _ in range(4):
        grid.evaluate_changed()
        grid.evaluate_changed()
        states.append(grid.job(job_id).state)
        grid.pass_time(seconds=60)
    assert states == [JobState.HELD, JobState.WAITING, JobState.HELD, JobState.WAITING]


@pytest.mark.parametrize("expression", ["Unknown > 3", "1 / 0", '"true"', "1"])
def test_only_boolean_true_triggers_policy(grid: PolicyGrid, expression: str) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_hold=expression, periodic_remove=expression))
    assert grid.evaluate_changed() == []
    assert grid.evaluate_watched(PolicyWatch.ON_CHANGE) == []
    assert grid.job(job_id).state is JobState.WAITING


def test_job_over_allowed_duration_is_held(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(attributes={"AllowedJobDuration": 300})
    pilot = grid.start_pilot()
    grid.run_for(pilot, 300)
    assert grid.evaluate_watched() == []
    grid.pass_time(seconds=1)
    assert grid.evaluate_watched() == [job_id]
    job = grid.job(job_id)
    assert (job.state, job.hold_code) == (JobState.HELD, 46)
