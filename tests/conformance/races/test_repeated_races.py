"""Records of ended races, and jobs that run and race again."""

from __future__ import annotations

import pytest

from pilotage.errors import NotFoundError
from pilotage.job_description import JobDescription
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.transitions import release_fences_of_pilots
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.retention import remove_finished
from pilotage_server.operations.races.races import RaceFilter, list_races
from pilotage_server.operations.races.stragglers import find_stragglers, race_loads
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import an_operator
from support.races import REPEATABLE, SITES, A, B, C, PilotedJob, race_of, start_copy, start_race
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def test_new_copy_continues_race_after_failed_copies(grid: Grid) -> None:
    original, first = start_race(grid)
    PilotedJob(grid, B).finish(exit_code=1)
    second = start_copy(grid, original.job.id).copy_id
    assert grid.start_pilot(B).claim() == [], "no copy at a site where one failed"
    copy = PilotedJob(grid, C)
    view = race_of(grid, original.job.id)
    assert ([copy.id for copy in view.copies], view.race.copies, view.race.ended) == ([first, second], 2, None)
    copy.finish()
    assert original.job.state is JobState.DONE


def test_rescheduled_job_can_race_again(grid: Grid) -> None:
    original, first = start_race(grid)
    PilotedJob(grid, B).finish()
    grid.pass_time(minutes=30)
    grid.change(JobChange.RESCHEDULE, original.job.id)
    again = PilotedJob(grid, A)
    assert again.job.id == original.job.id
    second = start_copy(grid, again.job.id).copy_id
    PilotedJob(grid, C).finish(exit_code=1)
    assert again.job.state is JobState.RUNNING, "the copy of the earlier race decides nothing"
    assert [copy.id for copy in race_of(grid, again.job.id).copies] == [second]
    assert first != second


def test_race_is_removed_with_its_original(grid: Grid) -> None:
    original, _ = start_race(grid)
    original.finish()
    job_id = original.job.id
    grid.pass_time(days=400)
    grid.write(remove_finished)
    with pytest.raises(ValueError, match="not enough values"):
        race_of(grid, job_id)


def test_rescheduled_winner_is_matched_after_report_of_its_pilot(grid: Grid) -> None:
    original, _ = start_race(grid)
    PilotedJob(grid, B).finish()
    grid.change(JobChange.RESCHEDULE, original.job.id)
    assert grid.start_pilot(C).claim() == []
    original.killed()
    assert grid.start_pilot(C).claim() == [original.job.id]


def test_rescheduled_winner_is_matched_after_end_of_its_pilot(grid: Grid) -> None:
    original, _ = start_race(grid)
    PilotedJob(grid, B).finish()
    grid.change(JobChange.RESCHEDULE, original.job.id)
    grid.write(lambda transaction, state: release_fences_of_pilots(transaction, state, [original.pilot.stamp]))
    assert grid.start_pilot(C).claim() == [original.job.id]


def test_result_of_earlier_run_does_not_affect_new_race(grid: Grid) -> None:
    original, first = start_race(grid)
    PilotedJob(grid, B).finish()
    original.killed()
    grid.change(JobChange.RESCHEDULE, original.job.id)
    again = PilotedJob(grid, A)
    second = start_copy(grid, again.job.id).copy_id
    assert [copy.id for copy in race_of(grid, again.job.id).copies] == [second]
    PilotedJob(grid, C).finish(exit_code=1)
    assert (again.job.state, grid.job(first).state) == (JobState.RUNNING, JobState.DONE)


def copies_made(grid: Grid) -> int:
    (report,) = grid.read(lambda transaction, state: find_stragglers(transaction, state, 0)).sets
    return report.stragglers[0].copies_made


def urgent_job(grid: Grid) -> tuple[PilotedJob, int]:
    """Return a running urgent job whose only copy has failed, and the copy."""
    grid.submit(attributes={**REPEATABLE, "Urgent": True})
    original = PilotedJob(grid, A)
    copy_id = start_copy(grid, original.job.id).copy_id
    PilotedJob(grid, B).finish(exit_code=1)
    return original, copy_id


def test_copies_count_after_eviction(grid: Grid) -> None:
    original, first = urgent_job(grid)
    assert copies_made(grid) == 1
    original.pilot.report(original.match, Outcome.EVICTED)
    again = PilotedJob(grid, A)
    assert (again.job.id, again.job.attempt, copies_made(grid)) == (original.job.id, 2, 1)
    second = start_copy(grid, again.job.id).copy_id
    assert grid.start_pilot(B).claim() == [], "still no copy at a site where one failed"
    PilotedJob(grid, C)
    assert copies_made(grid) == 2
    assert [copy.id for copy in race_of(grid, again.job.id).copies] == [first, second]


def test_copies_count_after_hold(grid: Grid) -> None:
    original, _ = urgent_job(grid)
    grid.change(JobChange.HOLD, original.job.id)
    original.killed()
    grid.change(JobChange.RELEASE, original.job.id)
    PilotedJob(grid, A)
    assert copies_made(grid) == 1


def test_removed_copies_still_count(grid: Grid) -> None:
    original, copy_id = urgent_job(grid)
    for _ in range(40):
        grid.pass_time(days=10)
        original.pilot.beat()
    grid.write(remove_finished)
    with pytest.raises(NotFoundError):
        grid.job(copy_id)
    assert copies_made(grid) == 1


@pytest.mark.parametrize("how", ["rescheduled", "edited"])
def test_restarted_job_may_have_all_copies_again(grid: Grid, how: str) -> None:
    original, _ = urgent_job(grid)
    if how == "rescheduled":
        grid.change(JobChange.RESCHEDULE, original.job.id)
        original.killed()
    else:
        original.pilot.report(original.match, Outcome.EVICTED)
        changed = JobDescription("/bin/false", attributes={**REPEATABLE, "Urgent": True})
        grid.write(lambda transaction, state: edit_job(transaction, state, an_operator(), original.job.id, changed))
    PilotedJob(grid, A)
    assert copies_made(grid) == 0


def test_costs_of_earlier_races_are_kept(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    grid.pass_time(minutes=5)
    copy.finish(exit_code=1)
    assert race_of(grid, original.job.id).lost_core_s == 300
    grid.pass_time(minutes=5)
    start_copy(grid, original.job.id)
    PilotedJob(grid, C)
    grid.pass_time(minutes=1)
    assert race_of(grid, original.job.id).lost_core_s == 360, "the race continues"
    (load,) = grid.read(lambda transaction, _: race_loads(transaction))
    assert load.lost_core_s == 360
    original.finish()
    assert race_of(grid, original.job.id).lost_core_s == 360
    grid.change(JobChange.RESCHEDULE, original.job.id)
    again = PilotedJob(grid, A)
    start_copy(grid, again.job.id)
    PilotedJob(grid, B)
    grid.pass_time(minutes=2)
    again.finish()
    (cost,) = grid.read(lambda transaction, _: list_races(transaction, an_operator(), RaceFilter("*"))).costs
    assert cost.lost_core_s == 360 + 120


def test_copies_of_earlier_run_do_not_belong_to_new_race(grid: Grid) -> None:
    original, first = start_race(grid)
    grid.change(JobChange.RESCHEDULE, original.job.id)
    original.killed()
    again = PilotedJob(grid, A)
    assert grid.job(first).state is JobState.REMOVED
    second = start_copy(grid, again.job.id).copy_id
    view = race_of(grid, again.job.id)
    assert ([copy.id for copy in view.copies], view.race.copies) == ([second], 1)
