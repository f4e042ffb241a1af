"""What policies want done with a job, decided from its record and its ad alone."""

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
from support.jobs import a_job, stepped
from support.virtual_clock import START

HELD = a_job(state=JobState.HELD, hold_code=int(HoldCode.JOB_POLICY), hold_subcode=0)


def verdict(
    state: JobState = JobState.WAITING, system: JobPolicy | None = None, **own: str
) -> PeriodicPolicyAction | None:
    job = HELD if state is JobState.HELD else a_job(state=state)
    description = JobDescription("/bin/true", policy=JobPolicy(**own))
    return PeriodicPolicyEvaluator(system or JobPolicy()).action(job, description, FoldedAd({}), START)


def cause(state: JobState = JobState.WAITING, system: JobPolicy | None = None, **own: str) -> JobCause | None:
    decided = verdict(state, system, **own)
    return None if decided is None else decided.cause


def test_hold_goes_before_remove_and_release_before_remove() -> None:
    assert cause(periodic_hold="true", periodic_remove="true") is JobCause.HELD
    assert cause(JobState.HELD, periodic_hold="true", periodic_remove="true") is JobCause.REMOVED
    assert cause(JobState.HELD, periodic_release="true", periodic_remove="true") is JobCause.RELEASED
    assert cause(periodic_release="true") is None


def test_the_jobs_own_expression_goes_before_the_operators() -> None:
    both = verdict(system=JobPolicy(periodic_hold="true"), periodic_hold="true")
    assert both is not None
    assert both.code is HoldCode.JOB_POLICY
    theirs = verdict(system=JobPolicy(periodic_hold="true"), periodic_hold="false")
    assert theirs == PeriodicPolicyAction(
        JobCause.HELD, "system_periodic_hold became true: true", HoldCode.SYSTEM_POLICY
    )


@pytest.mark.parametrize("state", sorted(set(JobState) - UNDER_POLICY))
def test_jobs_that_have_ended_or_whose_payload_has_are_left_alone(state: JobState) -> None:
    assert cause(state, periodic_hold="true", periodic_remove="true") is None


@given(
    st.sampled_from(["undefined", "error", '"true"', "1", "0.5", "{true}", "X", "X + 1 > 2", "strcat(1)", "[a = 1]"])
)
def test_what_is_not_true_itself_does_nothing(expression: str) -> None:
    assert cause(periodic_hold=expression, periodic_remove=expression) is None


def test_a_reason_that_is_no_text_and_a_subcode_that_is_no_integer_give_way_to_the_ordinary_ones() -> None:
    decided = verdict(periodic_hold="true", periodic_hold_reason="3", periodic_hold_subcode='"x"')
    assert decided == PeriodicPolicyAction(JobCause.HELD, "its periodic_hold became true: true")
    huge = verdict(periodic_hold="true", periodic_hold_subcode="2147483648", periodic_hold_reason='"why"')
    assert huge == PeriodicPolicyAction(JobCause.HELD, "why", subcode=0)
    exact = verdict(periodic_hold="true", periodic_hold_subcode="-7")
    assert exact is not None
    assert exact.subcode == -7


def test_a_job_may_run_as_long_as_it_is_allowed_to() -> None:
    description = JobDescription("/bin/true", attributes={"allowedJOBduration": 300})
    job = a_job(state=JobState.RUNNING, started=START)
    judge = PeriodicPolicyEvaluator()
    assert judge.action(job, description, FoldedAd({}), START + timedelta(seconds=300)) is None
    held = judge.action(job, description, FoldedAd({}), START + timedelta(seconds=301))
    assert held is not None
    assert held.code is HoldCode.JOB_DURATION_EXCEEDED


@pytest.mark.parametrize("allowed", ["300", True, ("300",)])
def test_a_duration_that_is_no_number_bounds_nothing(allowed: Value) -> None:
    description = JobDescription("/bin/true", attributes={"AllowedJobDuration": allowed})
    job = a_job(state=JobState.RUNNING, started=START)
    assert PeriodicPolicyEvaluator().action(job, description, FoldedAd({}), START + timedelta(days=99)) is None
    assert PeriodicPolicyEvaluator().watch(description) is PolicyWatch.NEVER


# Counted


@given(
    st.lists(st.tuples(st.sampled_from(list(JobCause)), st.integers(0, 10_000)), max_size=30),
)
def test_counters_only_grow_until_a_job_is_rescheduled(steps: list[tuple[JobCause, int]]) -> None:
    job, now = a_job(), START
    for cause, passed_s in steps:
        now += timedelta(seconds=passed_s)
        if (job.state, cause) not in TRANSITIONS:
            continue
        before, job = job, stepped(job, cause, reason="", now=now)
        assert (job.hold_code is not None) == (job.state is JobState.HELD)
        assert job.suspended <= job.wall_clock + (now - job.started if job.started else timedelta(0))
        if cause is JobCause.RESCHEDULED:
            assert (job.starts, job.holds, job.wall_clock, job.suspended) == (0, 0, timedelta(0), timedelta(0))
        else:
            assert job.starts >= before.starts
            assert job.holds == before.holds + (job.state is JobState.HELD and before.state is not JobState.HELD)
            assert job.wall_clock >= before.wall_clock


# Evaluated once


class CountingEvaluator(AdEvaluator):
    """Tells how many results it remembers."""

    @property
    def remembered(self) -> int:
        return len(self._known)


def test_an_expression_is_evaluated_once_for_equal_values_of_what_it_refers_to() -> None:
    evaluator = CountingEvaluator()
    for process in range(100):
        ad = FoldedAd({"Owner": "alice", "ProcId": process, "RemoteWallClockTime": float(process // 50)})
        assert evaluator.value('OWNER == "ALICE" && RemoteWallClockTime < 1', ad) is (process < 50)
    assert evaluator.remembered == 2


def test_equal_numbers_of_other_types_are_other_values() -> None:
    evaluator = AdEvaluator()
    found = [evaluator.value("X =?= 1", FoldedAd({"X": value})) for value in (1, 1.0, True, "1")]
    assert found == [True, False, False, False]


def test_what_depends_on_time_or_may_refer_to_anything_is_never_remembered() -> None:
    evaluator = CountingEvaluator()
    for second in (1, 2):
        ad = FoldedAd({"MyCurrentTime": second, "X": second, "Y": Expression("X")})
        assert evaluator.value("time() == X", ad) is True
        assert evaluator.value('eval("X")', ad) == second
        assert evaluator.value("Y", ad) == second
    assert evaluator.remembered == 0


def test_what_is_remembered_is_bounded() -> None:
    evaluator = CountingEvaluator(most_values=10)
    for number in range(100):
        assert evaluator.value("X", FoldedAd({"X": number})) == number
    assert evaluator.remembered == 10


# Looks


def test_a_job_that_changes_often_is_looked_at_once() -> None:
    looks = PolicyQueue()
    for _ in range(5):
        looks.add([7, 8])
    assert looks.pop(START, 10) == [7, 8]
    assert looks.pop(START, 10) == []
    assert not looks.has_any


def test_a_job_that_policies_have_moved_is_looked_at_again_later() -> None:
    looks = PolicyQueue()
    looks.add([7])
    looks.defer([7], START + timedelta(minutes=1))
    assert looks.pop(START + timedelta(seconds=59), 10) == []
    assert looks.has_any
    assert looks.pop(START + timedelta(seconds=60), 10) == [7]


def test_a_server_that_has_just_started_looks_at_all_and_then_no_more() -> None:
    looks = PolicyQueue()
    assert looks.pop_all_flag()
    assert not looks.pop_all_flag()


def test_more_changes_than_can_be_remembered_let_all_be_looked_at() -> None:
    looks = PolicyQueue(most=3)
    looks.pop_all_flag()
    looks.add(range(10))
    assert looks.pop(START, 100) == [0, 1, 2]
    assert looks.pop_all_flag()


def test_more_moves_than_can_be_remembered_let_all_be_looked_at_later() -> None:
    looks = PolicyQueue(most=2)
    looks.pop_all_flag()
    looks.defer(range(3), START + timedelta(minutes=1))
    assert looks.pop(START, 10) == []
    assert looks.has_any
    assert not looks.pop_all_flag()
    assert looks.pop(START + timedelta(minutes=1), 10) == [0, 1]
    assert not looks.has_any
    assert looks.pop_all_flag()


@given(st.floats(0, 10), st.floats(0.001, 1))
def test_work_and_rest_together_keep_to_the_share(took_s: float, share: float) -> None:
    whole_s = took_s + pause_s(took_s, share)
    assert took_s == pytest.approx(whole_s * share)


# Holds


codes = st.sampled_from([*HoldCode, 7])


@given(st.lists(codes, max_size=10), st.none() | st.builds(Hold, codes, st.integers(-5, 5), st.text()))
def test_a_history_comes_back_from_its_text_and_counts_each_hold(held: list[int], last: Hold | None) -> None:
    history = NEVER_HELD if last is None else NEVER_HELD.with_release(last)
    for code in held:
        history = history.with_hold(code)
    assert history_from_json(history_to_json(history)) == history
    assert history.count == len(held)
    assert history.by_reason() == {hold_name(code): held.count(code) for code in held}


def test_names_of_reasons_are_htcondors() -> None:
    names = ["UserRequest", "JobPolicy", "SubmittedOnHold", "StartdHeldJob", "SystemPolicy", "JobDurationExceeded"]
    assert [hold_name(code) for code in HoldCode] == names
    assert hold_name(7) == "Code7"
    assert history_to_json(HoldHistory()) == ""
