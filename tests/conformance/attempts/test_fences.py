"""Fences: a job is not matched while its last attempt may still be alive."""

from __future__ import annotations

import pytest

from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


REQUEUING_CHANGES = pytest.mark.parametrize(
    "changes",
    [
        (JobChange.RESCHEDULE,),
        (JobChange.HOLD, JobChange.RELEASE),
        (JobChange.HOLD, JobChange.RESCHEDULE),
        (JobChange.REMOVE, JobChange.RESCHEDULE),
    ],
)


@REQUEUING_CHANGES
def test_fenced_job_is_not_matched_until_its_lease_ends(grid: Grid, changes: tuple[JobChange, ...]) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    match = first.take()
    first.start(match)
    for change in changes:
        grid.change(change, job_id)
    assert grid.job(job_id).state is JobState.WAITING
    assert second.claim() == []
    grid.pass_time(minutes=19)
    assert second.claim() == []
    grid.pass_time(minutes=2)
    assert second.claim() == [job_id]


@REQUEUING_CHANGES
def test_killed_report_releases_fence(grid: Grid, changes: tuple[JobChange, ...]) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    match = first.take()
    for change in changes:
        grid.change(change, job_id)
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: notified.append(count))
    first.report(match, Outcome.KILLED)
    assert notified == [1]
    assert second.claim() == [job_id]


def test_held_job_is_matched_when_released_after_killed_report(grid: Grid) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    match = first.take()
    grid.change(JobChange.HOLD, job_id)
    first.report(match, Outcome.KILLED)
    grid.change(JobChange.RELEASE, job_id)
    assert second.claim() == [job_id]


@pytest.mark.parametrize("pilot_reports_end", [True, False])
def test_end_of_pilot_releases_fence(grid: Grid, *, pilot_reports_end: bool) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    first.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    if pilot_reports_end:
        first.beat(ending=True)
    else:
        grid.glidein_ended(first)
    assert second.claim() == [job_id]


def test_expired_fence_notifies_waiting_requests(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.change(JobChange.RESCHEDULE, job_id)
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: notified.append(count))
    grid.pass_time(minutes=10)
    assert notified == []
    grid.pass_time(minutes=11)
    assert notified == [1]


def test_explanation_of_fenced_job_names_its_last_attempt(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    explanation = grid.why(job_id)
    assert "its last attempt" in explanation.summary
    assert "2026" in explanation.summary
    assert explanation.jobs_ahead == 0


def test_fences_survive_server_restart(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.change(JobChange.RESCHEDULE, job_id)
    grid = grid.restarted()
    other = grid.start_pilot()
    assert other.claim() == []
    grid.pass_time(minutes=21)
    assert other.claim() == [job_id]
