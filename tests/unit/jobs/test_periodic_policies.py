"""Periodic policies: their actions, counters, evaluation, and the queue of jobs to check."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.library import Expression
from pilotage.job_description import JobDescription, JobPolicy, Value
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd
from pilotage_server.core.jobs.periodic_policies import (
    UNDER_POLICY,
    PeriodicPolicyAction,
    PeriodicPolicyEvaluator,
    PolicyQueue,
    pause_s,
)
from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import (
    NEVER_HELD,
    TRANSITIONS,
    Hold,
    HoldCode,
    HoldHistory,
    JobCause,
    JobState,
    history_from_json,
    history_to_json,
    hold_name,
)
from support.jobs import a_job, after_transition
from support.virtual_clock import START

HELD = a_job(state=JobState.HELD, hold_code=int(HoldCode.JOB_POLICY), hold_subcode=0)


def action(
    state: JobState = JobState.WAITING, system: JobPolicy | None = None, **own: str
) -> PeriodicPolicyAction | None:
    job = HELD if state is JobState.HELD else a_job(state=state)
    description = JobDescription("/bin/true", policy=JobPolicy(**own))
    return PeriodicPolicyEvaluator(system or JobPolicy()).action(job, description, FoldedAd({}), START)


def cause_of_action(state: JobState = JobState.WAITING, system: JobPolicy | None = None, **own: str) -> JobCause | None:
    result = action(state, system, **own)
    return None if result is None else result.cause


def test_hold_and_release_precede_remove() -> None:
    assert cause_of_action(periodic_hold="true", periodic_remove="true") is JobCause.HELD
    assert cause_of_action(JobState.HELD, periodic_hold="true", periodic_remove="true") is JobCause.REMOVED
    assert cause_of_action(JobState.HELD, periodic_release="true", periodic_remove="true") is JobCause.RELEASED
    assert cause_of_action(periodic_release="true") is None


def test_expression_of_the_job_precedes_that_of_the_operator() -> None:
    of_job = action(system=JobPolicy(periodic_hold="true"), periodic_hold="true")
    assert of_job is not None
    assert of_job.code is HoldCode.JOB_POLICY
    of_operator = action(system=JobPolicy(periodic_hold="true"), periodic_hold="false")
    assert of_operator == PeriodicPolicyAction(
        JobCause.HELD, "system_periodic_hold became true: true", HoldCode.SYSTEM_POLICY
    )


@pytest.mark.parametrize("state", sorted(set(JobState) - UNDER_POLICY))
def test_policies_do_not_apply_after_the_payload_has_ended(state: JobState) -> None:
    assert cause_of_action(state, periodic_hold="true", periodic_remove="true") is None


@given(
    st.sampled_from(["undefined", "error", '"true"', "1", "0.5", "{true}", "X", "X + 1 > 2", "strcat(1)", "[a = 1]"])
)
def test_only_exactly_true_triggers_an_action(expression: str) -> None:
    assert cause_of_action(periodic_hold=expression, periodic_remove=expression) is None


def test_invalid_reason_and_subcode_are_replaced_by_defaults() -> None:
    result = action(periodic_hold="true", periodic_hold_reason="3", periodic_hold_subcode='"x"')
    assert result == PeriodicPolicyAction(JobCause.HELD, "its periodic_hold became true: true")
    too_large = action(periodic_hold="true", periodic_hold_subcode="2147483648", periodic_hold_reason='"why"')
    assert too_large == PeriodicPolicyAction(JobCause.HELD, "why", subcode=0)
    negative = action(periodic_hold="true", periodic_hold_subcode="-7")
    assert negative is not None
    assert negative.subcode == -7


def test_job_is_held_after_its_allowed_duration() -> None:
    description = JobDescription("/bin/true", attributes={"allowedJOBduration": 300})
    job = a_job(state=JobState.RUNNING, started=START)
    evaluator = PeriodicPolicyEvaluator()
    assert evaluator.action(job, description, FoldedAd({}), START + timedelta(seconds=300)) is None
    held = evaluator.action(job, description, FoldedAd({}), START + timedelta(seconds=301))
    assert held is not None
    assert held.code is HoldCode.JOB_DURATION_EXCEEDED


@pytest.mark.parametrize("allowed", ["300", True, ("300",)])
def test_invalid_allowed_duration_is_ignored(allowed: Value) -> None:
    description = JobDescription("/bin/true", attributes={"AllowedJobDuration": allowed})
    job = a_job(state=JobState.RUNNING, started=START)
    assert PeriodicPolicyEvaluator().action(job, description, FoldedAd({}), START + timedelta(days=99)) is None
    assert PeriodicPolicyEvaluator().watch(description) is PolicyWatch.NEVER


# Counters


@given(
    st.lists(st.tuples(st.sampled_from(list(JobCause)), st.integers(0, 10_000)), max_size=30),
)
def test_counters_grow_until_the_job_is_rescheduled(steps: list[tuple[JobCause, int]]) -> None:
    job, now = a_job(), START
    for cause, passed_s in steps:
        now += timedelta(seconds=passed_s)
        if (job.state, cause) not in TRANSITIONS:
            continue
        before, job = job, after_transition(job, cause, reason="", now=now)
        assert (job.hold_code is not None) == (job.state is JobState.HELD)
        assert job.suspended <= job.wall_clock + (now - job.started if job.started else timedelta(0))
        if cause is JobCause.RESCHEDULED:
            assert (job.starts, job.holds, job.wall_clock, job.suspended) == (0, 0, timedelta(0), timedelta(0))
        else:
            assert job.starts >= before.starts
            assert job.holds == before.holds + (job.state is JobState.HELD and before.state is not JobState.HELD)
            assert job.wall_clock >= before.wall_clock


# Evaluation cache


class CountingEvaluator(AdEvaluator):
    """Exposes the number of cached results."""

    @property
    def cached_results(self) -> int:
        return len(self._known)


def test_expression_is_evaluated_once_for_equal_referenced_values() -> None:
    evaluator = CountingEvaluator()
    for process in range(100):
        ad = FoldedAd({"Owner": "alice", "ProcId": process, "RemoteWallClockTime": float(process // 50)})
        assert evaluator.value('OWNER == "ALICE" && RemoteWallClockTime < 1', ad) is (process < 50)
    assert evaluator.cached_results == 2


def test_equal_numbers_of_different_types_are_distinguished() -> None:
    evaluator = AdEvaluator()
    found = [evaluator.value("X =?= 1", FoldedAd({"X": value})) for value in (1, 1.0, True, "1")]
    assert found == [True, False, False, False]


def test_time_dependent_and_dynamic_results_are_not_cached() -> None:
    evaluator = CountingEvaluator()
    for second in (1, 2):
        ad = FoldedAd({"MyCurrentTime": second, "X": second, "Y": Expression("X")})
        assert evaluator.value("time() == X", ad) is True
        assert evaluator.value('eval("X")', ad) == second
        assert evaluator.value("Y", ad) == second
    assert evaluator.cached_results == 0


def test_number_of_cached_results_is_bounded() -> None:
    evaluator = CountingEvaluator(most_values=10)
    for number in range(100):
        assert evaluator.value("X", FoldedAd({"X": number})) == number
    assert evaluator.cached_results == 10


# Queue of jobs to check


def test_repeatedly_changed_job_is_queued_once() -> None:
    queue = PolicyQueue()
    for _ in range(5):
        queue.add([7, 8])
    assert queue.pop(START, 10) == [7, 8]
    assert queue.pop(START, 10) == []
    assert not queue.has_any


def test_deferred_job_is_queued_after_its_delay() -> None:
    queue = PolicyQueue()
    queue.add([7])
    queue.defer([7], START + timedelta(minutes=1))
    assert queue.pop(START + timedelta(seconds=59), 10) == []
    assert queue.has_any
    assert queue.pop(START + timedelta(seconds=60), 10) == [7]


def test_all_jobs_are_checked_once_after_the_start() -> None:
    queue = PolicyQueue()
    assert queue.pop_all_flag()
    assert not queue.pop_all_flag()


def test_overflow_of_changes_requests_a_check_of_all_jobs() -> None:
    queue = PolicyQueue(most=3)
    queue.pop_all_flag()
    queue.add(range(10))
    assert queue.pop(START, 100) == [0, 1, 2]
    assert queue.pop_all_flag()


def test_overflow_of_deferred_jobs_requests_a_later_check_of_all_jobs() -> None:
    queue = PolicyQueue(most=2)
    queue.pop_all_flag()
    queue.defer(range(3), START + timedelta(minutes=1))
    assert queue.pop(START, 10) == []
    assert queue.has_any
    assert not queue.pop_all_flag()
    assert queue.pop(START + timedelta(minutes=1), 10) == [0, 1]
    assert not queue.has_any
    assert queue.pop_all_flag()


@given(st.floats(0, 10), st.floats(0.001, 1))
def test_pause_keeps_work_to_its_share(took_s: float, share: float) -> None:
    whole_s = took_s + pause_s(took_s, share)
    assert took_s == pytest.approx(whole_s * share)


# Holds


codes = st.sampled_from([*HoldCode, 7])


@given(st.lists(codes, max_size=10), st.none() | st.builds(Hold, codes, st.integers(-5, 5), st.text()))
def test_hold_history_round_trips_and_counts_holds(held: list[int], last: Hold | None) -> None:
    history = NEVER_HELD if last is None else NEVER_HELD.with_release(last)
    for code in held:
        history = history.with_hold(code)
    assert history_from_json(history_to_json(history)) == history
    assert history.count == len(held)
    assert history.by_reason() == {hold_name(code): held.count(code) for code in held}


def test_hold_reasons_have_htcondors_names() -> None:
    names = ["UserRequest", "JobPolicy", "JobPolicyUndefined", "SubmittedOnHold", "StartdHeldJob", "SystemPolicy"]
    assert [hold_name(code) for code in HoldCode] == [*names, "JobDurationExceeded"]
    assert hold_name(7) == "Code7"
    assert history_to_json(HoldHistory()) == ""
