"""The end of a race, and the progress of a set of jobs, computed from records."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.races.races import (
    MAX_RACE_COPIES,
    Race,
    RaceSet,
    cause_in_race,
    copy_description,
    copy_refusal,
    invalid_flags,
    is_current,
    is_flagged,
    lost_core_s,
    may_end_race,
    race_end,
)
from pilotage_server.core.races.stragglers import is_near_end, set_progress, spread_ids
from support.jobs import a_job
from support.virtual_clock import START

QUEUE = QueueId("B", "ce", "q")
REPEATABLE = JobDescription("/bin/true", attributes={"maybeREPEATED": True})


def original(state: JobState = JobState.RUNNING, **fields: object) -> JobRecord:
    return a_job(id=1, state=state, attempt=1, race=1, **fields)


def a_copy(id_: int, state: JobState, **fields: object) -> JobRecord:
    return a_job(id=id_, state=state, attempt=1, race=1, queue=QUEUE, **fields)


def test_race_continues_without_success_while_a_copy_lives() -> None:
    for state in (JobState.RUNNING, JobState.WAITING):
        assert race_end(original(state), [a_copy(2, JobState.FAILED), a_copy(3, JobState.HELD)], ()) is None


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING])
def test_started_copy_keeps_race_of_failed_original_open(state: JobState) -> None:
    assert race_end(original(JobState.RACING), [a_copy(2, JobState.HELD), a_copy(3, state)], ()) is None


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.MATCHED, JobState.HELD])
def test_race_of_failed_original_ends_without_running_copy(state: JobState) -> None:
    end = race_end(original(JobState.RACING), [a_copy(2, state)], (JobCause.LEFT_TO_COPIES,))
    assert end is not None
    assert [(step.job.id, step.cause) for step in end.steps] == [(1, JobCause.FAILED), (2, JobCause.REMOVED)]


@pytest.mark.parametrize("state", list(JobState))
def test_only_stopped_copy_may_end_race(state: JobState) -> None:
    continuing = {JobState.RECEIVED, JobState.MATCHED, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}
    never_in = {JobState.RACING, JobState.BLOCKED}
    assert may_end_race(a_copy(2, state), ()) is (state not in continuing | never_in)


def test_race_is_current_until_job_is_restarted() -> None:
    race = Race(1, "lhcb", "users", "alice", START, "it lags behind", 2, 2, 2)
    assert is_current(race, 0)
    ended = race._replace(ended=START)
    assert is_current(ended, 0)
    assert is_current(ended, 1), "this restart came before the race"
    assert not is_current(ended, 2)


def test_original_wins_before_oldest_copy() -> None:
    copies = [a_copy(2, JobState.RUNNING), a_copy(3, JobState.DONE), a_copy(4, JobState.DONE)]
    won = race_end(original(JobState.DONE), copies, (JobCause.DONE,))
    assert won is not None
    assert (won.winner, [step.job.id for step in won.steps]) == (1, [2])
    won = race_end(original(), copies, ())
    assert won is not None
    assert (won.winner, [(step.job.id, step.cause) for step in won.steps]) == (
        3,
        [(1, JobCause.WON), (2, JobCause.REMOVED)],
    )


def test_holding_original_cancels_race_with_successful_copy() -> None:
    end = race_end(original(JobState.HELD), [a_copy(2, JobState.DONE), a_copy(3, JobState.RUNNING)], (JobCause.HELD,))
    assert end is not None
    assert (end.winner, end.outcome, [step.job.id for step in end.steps]) == (0, "the job was held", [3])


@pytest.mark.parametrize("cause", [JobCause.FAILED, JobCause.ATTEMPTS_EXHAUSTED])
def test_failure_of_original_is_not_final_in_a_race(cause: JobCause) -> None:
    assert cause_in_race(original(), cause) is JobCause.LEFT_TO_COPIES
    assert cause_in_race(original(JobState.RACING), cause) is cause
    assert cause_in_race(a_copy(2, JobState.RUNNING), cause) is cause
    assert cause_in_race(original(), JobCause.EVICTED) is JobCause.EVICTED


def test_flags_are_booleans_with_case_insensitive_names() -> None:
    assert is_flagged(REPEATABLE, "MayBeRepeated")
    assert not is_flagged(JobDescription("x", attributes={"MayBeRepeated": 1}), "MayBeRepeated")
    invalid = JobDescription("x", attributes={"mayberepeated": "true", "Urgent": 1, "Other": 1})
    assert list(invalid_flags(invalid)) == ["mayberepeated", "Urgent"]


def test_copy_bans_used_sites_and_sites_of_owner() -> None:
    copied = copy_description(JobDescription("x", count=7, banned_sites=("D", "A")), {"B", "A"})
    assert (copied.banned_sites, copied.count) == (("D", "A", "B"), None)


def test_refuses_more_than_maximum_copies() -> None:
    copies = [a_copy(2 + number, JobState.RUNNING, started=START) for number in range(MAX_RACE_COPIES)]
    assert copy_refusal(original(), REPEATABLE, copies[1:]) == ""
    assert copy_refusal(original(), REPEATABLE, copies) == f"{MAX_RACE_COPIES} copies of job 1 race already"


def test_refuses_copies_of_job_that_may_start_once() -> None:
    once = original()._replace(max_starts=1)
    assert copy_refusal(once, REPEATABLE, ()) == "job 1 has max_starts: a copy would be another start"


def an_attempt(job_id: int, attempt: int, minutes: tuple[int, int], cpus: int = 1) -> AttemptRecord:
    matched, ended = (START + timedelta(minutes=minute) for minute in minutes)
    owner = Account("lhcb", "users", "alice")
    return AttemptRecord(job_id, attempt, "p", QUEUE, "n", "s", cpus, cpus, owner, matched, ended)


def test_original_costs_since_race_start_only_if_copy_wins() -> None:
    race = Race(1, "lhcb", "users", "alice", START + timedelta(minutes=10), "it lags behind", 2, 2, 1)
    attempts = [
        an_attempt(1, 1, (0, 30), cpus=4),
        an_attempt(2, 1, (12, 15)),
        an_attempt(2, 2, (20, 30)),
        an_attempt(3, 1, (25, 30)),
    ]
    copy = a_copy(2, JobState.DONE)._replace(attempt=2)
    won_by_copy = race_end(original(), [copy, a_copy(3, JobState.RUNNING)], ())
    won_by_original = race_end(original(JobState.DONE), [copy._replace(state=JobState.RUNNING)], (JobCause.DONE,))
    assert won_by_copy is not None
    assert won_by_original is not None
    now = START + timedelta(minutes=30)
    assert lost_core_s(race, won_by_copy, attempts, now) == 60 * (4 * 20 + 3 + 5)
    assert lost_core_s(race, won_by_original, attempts, now) == 60 * (3 + 10 + 5)


def test_sample_of_set_is_bounded_and_evenly_spread() -> None:
    assert spread_ids(RaceSet(7, 10, 4, urgent=False), 500) == [7, 8, 9, 10]
    ids = spread_ids(RaceSet(1, 1_000_000, 1_000_000, urgent=False), 500)
    assert (len(ids), ids[0], ids[-1]) == (500, 1, 998_001)


def test_set_progress_counts_successful_jobs() -> None:
    ended = [(JobState.DONE, timedelta(seconds=second)) for second in range(1, 101)]
    others = [(JobState.FAILED, timedelta(seconds=1)), (JobState.RUNNING, timedelta(0))]
    progress = set_progress(ended + others)
    assert (progress.sampled, progress.done) == (102, 100)
    assert progress.p95 == timedelta(seconds=95)
    assert set_progress(others).done == 0


@pytest.mark.parametrize(("jobs", "p95_s"), [(1, 1), (2, 2), (19, 19), (20, 19), (21, 20), (40, 38)])
def test_95th_percentile_rounds_up_to_whole_job(jobs: int, p95_s: int) -> None:
    ended = [(JobState.DONE, timedelta(seconds=second)) for second in range(1, jobs + 1)]
    assert set_progress(ended).p95 == timedelta(seconds=p95_s)


def test_removed_jobs_do_not_count_in_set() -> None:
    jobs = [(state, timedelta(seconds=9)) for state in (JobState.DONE, JobState.REMOVED, JobState.RUNNING)]
    assert set_progress(jobs) == (2, 1, timedelta(seconds=9))
    assert set_progress(jobs[1:]).sampled == 1


def test_set_is_near_end_when_half_of_sample_ended() -> None:
    ended, running = (JobState.FAILED, timedelta(0)), (JobState.RUNNING, timedelta(0))
    assert is_near_end([ended, running])
    assert not is_near_end([ended, running, running])
