"""Jobs taken from a pilot that may still be running them: no two attempts of a job live at once."""

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


WAYS_BACK = pytest.mark.parametrize(
    "changes",
    [
        (JobChange.RESCHEDULE,),
        (JobChange.HOLD, JobChange.RELEASE),
        (JobChange.HOLD, JobChange.RESCHEDULE),
        (JobChange.REMOVE, JobChange.RESCHEDULE),
    ],
)


@WAYS_BACK
def test_a_job_taken_from_a_pilot_is_given_to_nobody_while_that_one_may_be_running_it(
    grid: Grid, changes: tuple[JobChange, ...]
) -> None:
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


@WAYS_BACK
def test_it_is_given_away_as_soon_as_its_pilot_has_killed_it(grid: Grid, changes: tuple[JobChange, ...]) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    match = first.take()
    for change in changes:
        grid.change(change, job_id)
    told: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: told.append(count))
    first.report(match, Outcome.KILLED)
    assert told == [1]
    assert second.claim() == [job_id]


def test_it_can_be_released_after_the_pilots_word_too(grid: Grid) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    match = first.take()
    grid.change(JobChange.HOLD, job_id)
    first.report(match, Outcome.KILLED)
    grid.change(JobChange.RELEASE, job_id)
    assert second.claim() == [job_id]


@pytest.mark.parametrize("said_by_itself", [True, False])
def test_it_is_given_away_as_soon_as_its_pilot_is_gone(grid: Grid, *, said_by_itself: bool) -> None:
    (job_id,) = grid.submit()
    first, second = grid.start_pilot(), grid.start_pilot()
    first.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    if said_by_itself:
        first.beat(ending=True)
    else:
        grid.glidein_ended(first)
    assert second.claim() == [job_id]


def test_who_waits_is_woken_when_the_lease_of_a_lingering_attempt_has_ended(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.change(JobChange.RESCHEDULE, job_id)
    told: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: told.append(count))
    grid.pass_time(minutes=10)
    assert told == []
    grid.pass_time(minutes=11)
    assert told == [1]


def test_a_job_whose_last_attempt_lingers_says_that_it_waits_for_its_end(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    explanation = grid.why(job_id)
    assert "its last attempt" in explanation.summary
    assert "2026" in explanation.summary
    assert explanation.jobs_ahead == 0


def test_a_server_that_starts_again_knows_what_lingers(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.change(JobChange.RESCHEDULE, job_id)
    grid = grid.restarted()
    other = grid.start_pilot()
    assert other.claim() == []
    grid.pass_time(minutes=21)
    assert other.claim() == [job_id]
