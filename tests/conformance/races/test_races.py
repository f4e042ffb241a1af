"""Races: the first successful attempt wins, and the others are stopped."""

from __future__ import annotations

import hashlib

import pytest

from pilotage.errors import StateConflictError
from pilotage.job_description import JobDescription
from pilotage.values.attempts import Outcome, ReportedOutput
from pilotage.values.jobs import JobCondition
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.heartbeats import ReceivedHeartbeat, report_states
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.queries import list_jobs
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.submission.templates import last_ended_attempt, outputs_of
from support.grid import Grid
from support.jobs import a_user, an_operator
from support.races import REPEATABLE, SITES, A, B, C, PilotedJob, race_of, start_copy, start_race
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def test_first_successful_copy_wins_and_stops_original(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    copy = PilotedJob(grid, B)
    assert copy.match.job_id == copy_id
    grid.pass_time(minutes=5)
    assert copy.finish().accepted
    job = original.job
    assert (job.state, job.exit_code, job.attempt, str(job.queue)) == (JobState.DONE, 0, 2, B)
    assert job.reason == f"copy {copy_id} was the first to end well, on {B}"
    assert grid.history(job.id) == [(1, "won by a copy"), (2, "exited")]
    assert original.has_lost_lease()
    assert copy.job.state is JobState.DONE


def test_successful_original_stops_its_copies(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    copy = PilotedJob(grid, B)
    waiting = start_copy(grid, original.match.job_id).copy_id
    assert original.finish().accepted
    assert original.job.state is JobState.DONE
    for loser in (copy_id, waiting):
        why = f"it lost the race for job {original.job.id}: it was quicker itself"
        assert (grid.job(loser).state, grid.job(loser).reason) == (JobState.REMOVED, why)
    assert copy.has_lost_lease()
    assert grid.start_pilot(C).claim() == []


def test_output_of_winner_becomes_output_of_original(grid: Grid) -> None:
    original, _ = start_race(grid)
    checksum = hashlib.sha256(b"42").hexdigest()
    PilotedJob(grid, B).finish(output_files=(ReportedOutput("answer", checksum, 2, b"42"),))
    job_id = original.job.id
    attempt = grid.read(lambda transaction, _: last_ended_attempt(transaction.session, job_id))
    (output,) = grid.read(lambda transaction, _: outputs_of(transaction.session, job_id, attempt))
    assert (output.name, output.checksum, output.size) == ("answer", checksum, 2)


def test_late_success_is_recorded_and_changes_nothing(grid: Grid) -> None:
    original, _ = start_race(grid)
    PilotedJob(grid, B).finish()
    before = original.job
    assert original.finish().accepted
    assert original.job == before._replace(lease_until=None), "the job is fenced no more"
    late, won = grid.read(lambda transaction, _: load_history(transaction.session, before.id))
    assert (late.reason, won.reason) == ("the job was won by a copy before", before.reason)


def test_original_wins_over_copy_in_one_call(grid: Grid) -> None:
    original, _ = start_race(grid)
    copy = PilotedJob(grid, B)
    beats = [
        (
            runner.pilot.identity,
            ReceivedHeartbeat(reports=(JobReport(runner.match.job_id, 1, outcome=Outcome.EXITED, exit_code=0),)),
        )
        for runner in (copy, original)
    ]
    grid.write(lambda transaction, state: report_states(transaction, state, beats))
    assert grid.history(original.job.id) == [(1, "exited")]
    assert race_of(grid, original.job.id).race.winner == original.job.id
    assert copy.job.state is JobState.DONE


def test_race_continues_after_lost_leases(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    PilotedJob(grid, B)
    grid.pass_time(minutes=21)
    assert {original.job.state, grid.job(copy_id).state} == {JobState.WAITING}
    assert grid.start_pilot(A).claim() == [original.job.id], "the copy bans this site"
    copy = PilotedJob(grid, B)
    assert copy.finish().accepted
    assert original.job.state is JobState.DONE


def test_requeued_original_is_done_when_copy_wins(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    copy = PilotedJob(grid, B)
    original.pilot.report(original.match, Outcome.EVICTED)
    assert original.job.state is JobState.WAITING
    copy.finish()
    assert (original.job.state, grid.job(copy_id).state) == (JobState.DONE, JobState.DONE)
    assert grid.start_pilot(A).claim() == []


@pytest.mark.parametrize("change", [JobChange.REMOVE, JobChange.HOLD, JobChange.RESCHEDULE])
@pytest.mark.parametrize("failed", [False, True])
def test_change_of_original_ends_the_race(grid: Grid, change: JobChange, failed: bool) -> None:
    original, copy_id = start_race(grid)
    copy = PilotedJob(grid, B)
    if failed:
        original.finish(exit_code=1)
    grid.change(change, original.job.id)
    after = {
        JobChange.REMOVE: JobState.REMOVED,
        JobChange.HOLD: JobState.HELD,
        JobChange.RESCHEDULE: JobState.WAITING,
    }
    assert (original.job.state, original.job.race) == (after[change], 0)
    assert grid.job(copy_id).state is JobState.REMOVED
    assert copy.has_lost_lease()
    assert copy.finish().accepted
    assert original.job.state is after[change]


def test_edit_of_requeued_original_ends_the_race(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    original.pilot.report(original.match, Outcome.EVICTED)
    job_id = original.job.id
    grid.write(
        lambda transaction, state: edit_job(transaction, state, an_operator(), job_id, JobDescription("/bin/false"))
    )
    assert (original.job.state, grid.job(copy_id).state) == (JobState.WAITING, JobState.REMOVED)


def test_copy_cannot_be_edited_rescheduled_or_copied(grid: Grid) -> None:
    original, copy_id = start_race(grid)
    with pytest.raises(StateConflictError, match="is a copy of job"):
        grid.write(
            lambda transaction, state: edit_job(
                transaction, state, an_operator(), copy_id, JobDescription("/bin/false")
            )
        )
    PilotedJob(grid, B)
    assert start_copy(grid, copy_id).refusal == f"job {copy_id} is itself a copy of job {original.job.id}"
    original.finish()
    grid.change(JobChange.RESCHEDULE, copy_id)
    assert grid.job(copy_id).state is JobState.REMOVED


def test_only_running_repeatable_jobs_get_copies_one_at_a_time(grid: Grid) -> None:
    (ordinary,) = grid.submit()
    assert start_copy(grid, ordinary).refusal == f"job {ordinary} does not have MayBeRepeated = true"
    grid.change(JobChange.REMOVE, ordinary)
    (job_id,) = grid.submit(attributes=REPEATABLE)
    assert start_copy(grid, job_id).refusal == f"job {job_id} is WAITING; only a running job is raced"
    assert start_copy(grid, 999).refusal == "there is no job 999"
    PilotedJob(grid, A)
    copy_id = start_copy(grid, job_id).copy_id
    assert start_copy(grid, job_id).refusal == f"copy {copy_id} of job {job_id} has not started yet"


def test_copies_avoid_sites_of_original_and_other_copies(grid: Grid) -> None:
    original, _ = start_race(grid, banned_sites=("D",))
    PilotedJob(grid, B)
    assert start_copy(grid, original.job.id).copy_id
    assert [grid.start_pilot(queue).claim() for queue in (A, B)] == [[], []]
    assert PilotedJob(grid, C).job.is_race_copy


def test_copy_has_cluster_and_process_of_original(grid: Grid) -> None:
    ids = grid.submit(count=3, attributes=REPEATABLE, arguments="$(Process)")
    runners = [PilotedJob(grid, A) for _ in ids]
    start_copy(grid, ids[2])
    copy = PilotedJob(grid, B)
    assert copy.match.rendered().arguments == runners[2].match.rendered().arguments == "2"
    assert (copy.job.cluster, copy.job.process) == (ids[0], 2)


def test_copies_are_listed_only_on_request(grid: Grid) -> None:
    original, copy_id = start_race(grid)

    def listed(*, copies: bool) -> list[int]:
        page = grid.read(
            lambda transaction, state: list_jobs(transaction, state, a_user(), JobCondition(), copies=copies)
        )
        return [job.id for job in page.jobs]

    assert listed(copies=False) == [original.job.id]
    assert listed(copies=True) == [original.job.id, copy_id]


def test_cost_of_race_is_use_of_losers(grid: Grid) -> None:
    original, _ = start_race(grid, request_cpus=2)
    copy = PilotedJob(grid, B, cpus=2)
    grid.pass_time(minutes=5)
    assert race_of(grid, original.job.id).lost_core_s == 600, "during the race, the use of the copies"
    copy.finish()
    view = race_of(grid, original.job.id)
    assert (view.race.winner, view.lost_core_s) == (copy.job.id, 600), "five minutes of the original"


def test_losing_copy_is_charged_once(grid: Grid) -> None:
    original, _ = start_race(grid)
    grid.pass_time(minutes=5)
    copy = PilotedJob(grid, B)
    grid.pass_time(minutes=5)
    original.finish()
    assert race_of(grid, original.job.id).lost_core_s == 300
    used = grid.state.shares.use(copy.match.terms.account, grid.clock()).core_s
    assert used == pytest.approx(600 + 300, rel=0.01)


def test_winning_copy_is_charged_once(grid: Grid) -> None:
    start_race(grid)
    copy = PilotedJob(grid, B)
    grid.pass_time(minutes=5)
    copy.finish()
    used = grid.state.shares.use(copy.match.terms.account, grid.clock()).core_s
    assert used == pytest.approx(600, rel=0.01)


def test_original_is_retried_beside_its_copies_and_a_copy_never(grid: Grid) -> None:
    original, _ = start_race(grid, retries=5)
    failed = PilotedJob(grid, B)
    failed.finish(exit_code=4)
    assert (failed.job.state, failed.job.reason) == (JobState.FAILED, "exit code 4")
    start_copy(grid, original.match.job_id)
    copy = PilotedJob(grid, C)
    assert original.finish(exit_code=3).accepted
    assert (original.job.state, original.job.reason) == (JobState.WAITING, "retry 1 of 5 after exit code 3")
    copy.finish()
    assert (original.job.state, original.job.exit_code) == (JobState.DONE, 0)
