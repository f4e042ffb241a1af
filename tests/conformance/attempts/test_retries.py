"""Retries on every database: own budget, delay, holds at exit, more memory, and how they combine with other rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pilotage.job_description import JobDescription, JobPolicy
from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import HoldCode, JobCause, JobState
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.queries import get_ad, get_events, list_attempts
from pilotage_server.storage.attempts import load_ended
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.submission.templates import load_description
from support.grid import FAST, Grid, Pilot, a_slot, a_tree, an_idle_slot
from support.jobs import a_user, an_operator
from support.sql_statements import statements
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def run(grid: Grid, exit_code: int = 0, **report: Any) -> None:
    """Let a new pilot run the next job to its end."""
    pilot = grid.start_pilot()
    match = pilot.take(a_slot(memory_mib=100_000))
    pilot.start(match)
    pilot.report(match, Outcome.EXITED, exit_code=exit_code, **report)


def state_and_reason(grid: Grid, job: int) -> tuple[JobState, str]:
    record = grid.job(job)
    return record.state, record.reason


def causes(grid: Grid, job: int) -> list[JobCause]:
    return [event.cause for event in grid.read(lambda transaction, _: get_events(transaction, an_operator(), job))]


def description_of(grid: Grid, job: JobRecord) -> JobDescription:
    return grid.read(lambda transaction, _: load_description(transaction.session, job.template_id))


def test_failed_job_runs_again_until_its_retries_are_used(grid: Grid) -> None:
    (job,) = grid.submit(retries=2)
    run(grid, 3)
    assert state_and_reason(grid, job) == (JobState.WAITING, "retry 1 of 2 after exit code 3")
    run(grid, 4)
    assert state_and_reason(grid, job) == (JobState.WAITING, "retry 2 of 2 after exit code 4")
    run(grid, 5)
    assert state_and_reason(grid, job) == (JobState.FAILED, "exit code 5, after 2 of 2 retries")
    assert causes(grid, job).count(JobCause.RETRIED) == 2
    record = grid.job(job)
    assert (record.attempt, record.exit_code, record.starts, record.spent_attempts) == (3, 5, 3, 0)


def test_retry_that_succeeds_ends_the_job(grid: Grid) -> None:
    (job,) = grid.submit(retries=2)
    run(grid, 3)
    run(grid, 0)
    record = grid.job(job)
    assert (record.state, record.reason, record.exit_code, record.attempt) == (JobState.DONE, "", 0, 2)
    ad = grid.read(lambda transaction, _: get_ad(transaction, an_operator(), job))
    assert (ad["NumJobCompletions"], ad["NumJobStarts"], ad["JobMaxRetries"], ad["ExitCode"]) == (2, 2, 2, 0)


def test_each_attempt_keeps_its_place_and_its_end(grid: Grid) -> None:
    (job,) = grid.submit(retries=1)
    run(grid, 3, cpu_s=1.5, system_cpu_s=0.5, wall_s=2.0, peak_memory_mib=70, peak_disk_mib=30)
    run(grid, 0, cpu_s=2.5)
    first, second = grid.read(lambda transaction, _: list_attempts(transaction, an_operator(), [job]))
    assert [(each.record.attempt, each.record.pilot_stamp) for each in (first, second)] == [(1, "p1"), (2, "p2")]
    assert (first.record.outcome, first.record.reason, first.exit_code) == ("exited", "exit code 3", 3)
    assert first.usage == AttemptUsage(1, 1, 0, 1.5, 0.5, 2.0, 0.0, 70, 30)
    assert (second.record.outcome, second.exit_code, second.usage.cpu_s) == ("exited", 0, 2.5)


def test_attempt_that_runs_has_its_time_so_far(grid: Grid) -> None:
    (job,) = grid.submit(retries=1)
    run(grid, 3, wall_s=2.0)
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.pass_time(seconds=90)
    attempts = grid.read(lambda transaction, _: list_attempts(transaction, an_operator(), [job]))
    assert [each.usage.wall_s for each in attempts] == [2.0, 90.0]


def test_exit_policy_reads_what_the_attempt_has_used(grid: Grid) -> None:
    hold = JobPolicy(on_exit_hold="MemoryUsage > 600 && RemoteUserCpu == 3.0 && DiskUsage == 1024")
    small, large = grid.submit(policy=hold, count=2)
    used = {"cpu_s": 4.0, "system_cpu_s": 1.0, "peak_disk_mib": 1}
    run(grid, 0, peak_memory_mib=600, **used)
    run(grid, 0, peak_memory_mib=601, **used)
    assert [grid.job(job).state for job in (small, large)] == [JobState.DONE, JobState.HELD]


def test_repeated_report_of_a_retried_attempt_changes_nothing(grid: Grid) -> None:
    (job,) = grid.submit(retries=5)
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.finish(match, exit_code=3)
    assert pilot.finish(match, exit_code=3).accepted
    assert (grid.job(job).completions, causes(grid, job).count(JobCause.RETRIED)) == (1, 1)


def test_lost_attempts_and_retries_have_budgets_of_their_own(grid: Grid) -> None:
    (job,) = grid.submit(retries=1)
    for _ in range(2):  # the default limit of attempts is three
        grid.start_pilot().take()
        grid.pass_time(minutes=21)
    run(grid, 3)
    assert state_and_reason(grid, job) == (JobState.WAITING, "retry 1 of 1 after exit code 3")
    grid.start_pilot().take()
    grid.pass_time(minutes=21)
    record = grid.job(job)
    assert (record.state, record.completions, record.spent_attempts) == (JobState.FAILED, 1, 3)


def test_delayed_retry_waits_until_it_is_due(grid: Grid) -> None:
    (job,) = grid.submit(retries=3, retry_delay=timedelta(minutes=5))
    run(grid, 3)
    due = grid.clock() + timedelta(minutes=5)
    assert (grid.job(job).state, grid.job(job).fenced_until) == (JobState.WAITING, due)
    assert grid.start_pilot().claim() == []
    until = f"{due:%Y-%m-%d %H:%M:%S} UTC"
    assert grid.why(job).summary == f"It waits until {until}: retry 1 of 3 after exit code 3, not before {until}."
    grid.pass_time(minutes=4)
    assert grid.start_pilot().claim() == []
    grid.pass_time(minutes=2)
    assert grid.start_pilot().claim() == [job]


def test_delayed_retry_outlasts_a_restart_a_hold_and_the_end_of_its_pilot(grid: Grid) -> None:
    (job,) = grid.submit(retries=3, retry_delay=timedelta(hours=1))
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.finish(match, exit_code=3)
    grid.glidein_ended(pilot)
    grid.change(JobChange.HOLD, job)
    grid.change(JobChange.RELEASE, job)
    again = grid.restarted()
    assert again.start_pilot().claim() == []
    again.pass_time(minutes=61)
    assert again.start_pilot().claim() == [job]


def test_exit_can_hold_the_job_with_reason_and_codes(grid: Grid) -> None:
    policy = JobPolicy(
        on_exit_hold="ExitCode == 3", on_exit_hold_reason='"look at it"', on_exit_hold_subcode="ExitCode"
    )
    (job,) = grid.submit(policy=policy)
    run(grid, 3)
    record = grid.job(job)
    assert (record.state, record.reason) == (JobState.HELD, "look at it")
    assert (record.hold_code, record.hold_subcode, record.is_fenced) == (HoldCode.JOB_POLICY, 3, False)
    grid.change(JobChange.RELEASE, job)
    run(grid, 0)
    assert grid.job(job).state is JobState.DONE


def test_exit_code_may_mean_success(grid: Grid) -> None:
    good, bad = grid.submit(count=2, success_exit_code=3)
    run(grid, 3)
    run(grid, 0)
    assert state_and_reason(grid, good) == (JobState.DONE, "")
    assert state_and_reason(grid, bad) == (JobState.FAILED, "exit code 0")


def test_reschedule_gives_all_retries_again(grid: Grid) -> None:
    (job,) = grid.submit(retries=1)
    run(grid, 3)
    run(grid, 3)
    grid.change(JobChange.RESCHEDULE, job)
    run(grid, 3)
    assert state_and_reason(grid, job) == (JobState.WAITING, "retry 1 of 1 after exit code 3")


def test_edit_can_add_retries(grid: Grid) -> None:
    (job,) = grid.submit()
    wanted = replace(description_of(grid, grid.job(job)), retries=1)
    grid.write(lambda transaction, state: edit_job(transaction, state, a_user(), job, wanted))
    run(grid, 3)
    assert grid.job(job).state is JobState.WAITING


@pytest.mark.parametrize("outcome", [Outcome.LIMIT_EXCEEDED, Outcome.REFUSED_BY_JOB])
def test_limits_and_refusals_are_not_retried(grid: Grid, outcome: Outcome) -> None:
    (job,) = grid.submit(retries=3, retry_memory=2.0, request_memory_mib=100)
    pilot = grid.start_pilot()
    match = pilot.take(a_slot(memory_mib=100))
    pilot.start(match)
    pilot.report(match, outcome, reason="so it was")
    assert state_and_reason(grid, job) == (JobState.FAILED, f"{outcome}: so it was")


def exceed(grid: Grid, memory_mib: int, pilot: Pilot | None = None) -> list[int]:
    """Let a slot with this memory run the next job until the memory limit ends it; return its id."""
    pilot = pilot or grid.start_pilot()
    matches = pilot.request_jobs(a_slot(memory_mib=memory_mib)).matches
    for match in matches:
        pilot.start(match)
        pilot.report(match, Outcome.LIMIT_EXCEEDED, signal=15, reason="it used too much", memory_limit_mib=memory_mib)
    return [match.job_id for match in matches]


def test_memory_limit_is_retried_with_more_memory_up_to_the_largest_queue(grid: Grid) -> None:
    grid.put(a_tree("CERN/ce01/long", Memory=300))
    job, other = grid.submit(count=2, request_memory_mib=100, retry_memory=2.0)
    assert exceed(grid, 100) == [job]
    ended = "limit exceeded: it used too much"
    assert state_and_reason(grid, job) == (JobState.WAITING, f"retry with 200 MiB of memory after {ended}")
    assert description_of(grid, grid.job(job)).request_memory_mib == 200
    assert description_of(grid, grid.job(other)).request_memory_mib == 100
    assert exceed(grid, 199) == [other]
    grid.change(JobChange.REMOVE, other)
    assert grid.start_pilot().claim(a_slot(memory_mib=199)) == []
    assert exceed(grid, 200) == [job]
    assert exceed(grid, 300) == [job]
    why = f"{ended}; no queue offers more than 300 MiB of memory, so it is not retried"
    assert state_and_reason(grid, job) == (JobState.FAILED, why)


def test_queue_without_stated_memory_offers_that_of_its_largest_slot(grid: Grid) -> None:
    (job,) = grid.submit(request_memory_mib=100, retry_memory=10.0)
    grid.start_pilot().show(an_idle_slot(memory_mib=700))
    assert exceed(grid, 100) == [job]
    assert description_of(grid, grid.job(job)).request_memory_mib == 700


def test_one_batch_of_reports_treats_each_job_by_its_policy(grid: Grid) -> None:
    plain, retried, held, good = (
        grid.submit(**fields)[0]
        for fields in (
            {},
            {"retries": 1},
            {"policy": JobPolicy(on_exit_hold="ExitCode == 3")},
            {"success_exit_code": 3},
        )
    )
    pilot = grid.start_pilot()
    matches = pilot.request_jobs(*(a_slot(f"slot{number}") for number in range(4))).matches
    reports = [JobReport(each.job_id, each.attempt, outcome=Outcome.EXITED, exit_code=3) for each in matches]
    assert all(result.accepted for result in pilot.beat(*reports).results)
    states = {job: grid.job(job).state for job in (plain, retried, held, good)}
    assert states == {
        plain: JobState.FAILED,
        retried: JobState.WAITING,
        held: JobState.HELD,
        good: JobState.DONE,
    }


def test_successes_of_jobs_with_retries_cost_no_more_statements(grid: Grid) -> None:
    counts = []
    for retries in (None, 3):
        jobs = grid.submit(count=5, retries=retries)
        pilot = grid.start_pilot()
        matches = pilot.request_jobs(*(a_slot(f"slot{number}") for number in range(5))).matches
        for match in matches:
            pilot.start(match)
        reports = [JobReport(each.job_id, each.attempt, outcome=Outcome.EXITED, exit_code=0) for each in matches]
        with statements(grid.database) as seen:
            pilot.beat(*reports)
        counts.append(len(seen))
        assert {grid.job(job).state for job in jobs} == {JobState.DONE}
    assert counts[0] == counts[1]


def test_retries_and_holds_are_evidence_of_black_holes(grid: Grid) -> None:
    grid.submit(retries=1, retry_delay=timedelta(hours=1))
    grid.submit(policy=JobPolicy(on_exit_hold="ExitCode == 3"))
    grid.submit(success_exit_code=3)
    for _ in range(3):
        run(grid, 3)
    ended = grid.read(lambda transaction, _: load_ended(transaction.session, 0, 1000, FAST))
    assert sum(group.number for group in ended if group.failed) == 2
    assert sum(group.number for group in ended if not group.failed) == 1
