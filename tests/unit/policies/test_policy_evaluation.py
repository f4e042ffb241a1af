"""Evaluation of a slot's policy expressions in the pilot: truth values, numbers, names and jobs."""

from __future__ import annotations

import pytest

from pilotage.classads.library import Expression, InvalidClassAdError
from pilotage_pilot.core.policy import BuiltInPolicyEvaluator, as_nice, as_number
from support.live_slots import BEGIN_S, LiveSlots, job_ad, policy_of


def _node(**texts: str) -> LiveSlots:
    return LiveSlots(policy_of(**texts))


def _truth(text: str, job: str | None = None) -> bool | None:
    node = _node(SUSPEND=text)
    if job is not None:
        node.ads.job_entered("slot1", job, "1.0", node.now)
    return node.ads.evaluator("slot1", node.now).truth("SUSPEND")


@pytest.mark.parametrize("text", ["1", '"true"', "undefined", "error", "Missing", "TARGET.x", "{true}", "1 + 1.0"])
def test_value_that_is_no_boolean_has_no_truth(text: str) -> None:
    assert _truth(text) is None


@pytest.mark.parametrize(("text", "truth"), [("True", True), ("FALSE", False), ("1 == 1.0", True), ("!True", False)])
def test_boolean_expressions_have_their_truth(text: str, truth: bool) -> None:
    assert _truth(text) is truth


def test_names_resolve_in_slot_ad_then_job_ad() -> None:
    job = job_ad(Wanted=True, Cpus=99)
    assert _truth("Wanted", job) is True
    assert _truth("MY.Wanted", job) is None
    assert _truth("Cpus == 8", job) is True
    assert _truth("TARGET.Cpus == 99", job) is True


@pytest.mark.parametrize(
    ("variant", "universe", "truth"),
    [
        ("True", 5, True),
        ("True", Expression("undefined"), True),
        ("True", 9, False),
        ("undefined", 5, False),
        ("1", 5, False),
    ],
)
def test_boolean_vanilla_variant_applies_to_vanilla_jobs(variant: str, universe: int | Expression, truth: bool) -> None:
    node = _node(PREEMPT="False", PREEMPT_VANILLA=variant)
    node.ads.job_entered("slot1", job_ad(JobUniverse=universe), "1.0", node.now)
    assert node.ads.evaluator("slot1", node.now).truth("PREEMPT") is truth


def test_number_and_text_are_none_for_other_types() -> None:
    node = _node(MaxJobRetirementTime="60 * 2", CLAIM_WORKLIFE='"long"', WANT_HOLD_REASON='strcat("no", "thing")')
    evaluator = node.ads.evaluator("slot1", node.now)
    assert (evaluator.number("MaxJobRetirementTime"), evaluator.number("CLAIM_WORKLIFE")) == (120.0, None)
    assert evaluator.number("WANT_HOLD_SUBCODE") is None
    assert (evaluator.text("WANT_HOLD_REASON"), evaluator.text("MaxJobRetirementTime")) == ("nothing", None)


def test_job_number_is_evaluated_in_job_ad() -> None:
    node = _node()
    assert node.ads.evaluator("slot1", node.now).job_number("MaxJobRetirementTime") is None
    job = job_ad(MaxJobRetirementTime=Expression("Base + TARGET.SlotID"), Base=100)
    node.ads.job_entered("slot1", job, "1.0", node.now)
    evaluator = node.ads.evaluator("slot1", node.now)
    assert evaluator.job_number("MaxJobRetirementTime") == 101.0
    assert evaluator.job_number("JobMaxVacateTime") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", Expression("{3}")])
def test_value_that_is_no_finite_number_is_none(value: float | str | Expression) -> None:
    assert as_number(value) is None


@pytest.mark.parametrize(
    ("result", "nice"), [(0, 0), (7, 7), (25, 19), (-3, 0), (5.0, 10), (True, 10), ("5", 10), (Expression("{5}"), 10)]
)
def test_nice_value_is_bounded_and_defaults_to_ten(result: int | float | str | Expression, nice: int) -> None:
    assert as_nice(result) == nice


@pytest.mark.parametrize("scope", ["", "TARGET."])
@pytest.mark.parametrize(("long_running", "nice"), [(True, 15), (False, 5), ("true", 5)])
def test_nice_expression_works_with_and_without_target(scope: str, long_running: bool | str, nice: int) -> None:
    node = _node(JOB_RENICE_INCREMENT=f"5 + (10 * ({scope}LongRunningJob =?= True))")
    assert node.ads.renice("slot1", job_ad(LongRunningJob=long_running), node.now) == nice


@pytest.mark.parametrize(("cpus", "starts"), [(8, True), (8.0, False), (16, False), (1, False), ("8", False)])
def test_start_is_evaluated_for_candidate_not_running_job(cpus: float | str, starts: bool) -> None:
    node = _node(START="RequestCpus =?= 8")
    node.ads.job_entered("slot1", job_ad(RequestCpus=1 if starts else 8), "1.0", node.now)
    assert node.ads.starts("slot1", job_ad(RequestCpus=cpus), node.now) is starts


def test_undefined_start_rejects_jobs_without_is_owner() -> None:
    node = _node(START="TARGET.Wanted")
    assert node.ads.starts("slot1", job_ad(), node.now) is None
    assert node.ads.evaluator("slot1", node.now).truth("IS_OWNER") is False


@pytest.mark.parametrize("text", ["nonsense", "[Owner = ]"])
def test_job_with_unreadable_ad_does_not_start(text: str) -> None:
    node = _node()
    assert node.ads.starts("slot1", text, node.now) is None
    with pytest.raises(InvalidClassAdError):
        node.ads.job_entered("slot1", text, "1.0", node.now)


def test_missing_job_ad_is_empty_ad() -> None:
    node = _node(START="TARGET.Owner is undefined")
    assert node.ads.starts("slot1", "", node.now) is True


@pytest.mark.parametrize(("text", "rank"), [("TARGET.Good", 1.0), ("TARGET.Prio * 2", 6.0), ("TARGET.None", 0.0)])
def test_rank_is_always_a_number(text: str, rank: float) -> None:
    node = _node(RANK=text)
    assert node.ads.rank("slot1", job_ad(Good=True, Prio=3), node.now) == rank


@pytest.mark.parametrize(
    ("texts", "preempts"),
    [
        ({}, False),
        ({"RANK": "10"}, False),
        ({"RANK": "TARGET.Prio"}, True),
        ({"RANK": "Prio"}, True),
        ({"PREEMPTION_REQUIREMENTS": "2 > 1"}, True),
        ({"PREEMPTION_REQUIREMENTS": "1 > 2"}, False),
        ({"PREEMPTION_REQUIREMENTS": "RemoteUserPrio > TARGET.SubmittorPrio"}, True),
        ({"PREEMPTION_REQUIREMENTS": "time() > 5"}, True),
    ],
)
def test_slot_preempts_when_rank_or_requirements_depend_on_job(texts: dict[str, str], preempts: bool) -> None:
    assert _node(**texts).ads.preempts is preempts


@pytest.mark.parametrize(
    ("texts", "polls"),
    [
        ({}, False),
        ({"START": "False"}, True),  # makes IS_OWNER true
        ({"START": "LoadAvg < 0.3"}, True),
        ({"PREEMPT": "True"}, True),
        ({"PREEMPT": "TotalJobRunTime > 20"}, True),
        ({"SUSPEND_VANILLA": 'slot2_State == "Claimed"'}, True),
        ({"KILL": 'eval("x")'}, True),
        ({"SUSPEND": "random(2) == 1"}, True),
        ({"RANK": "TARGET.Prio"}, False),
    ],
)
def test_slot_is_polled_when_policy_may_change_its_state(texts: dict[str, str], polls: bool) -> None:
    node = _node(**texts)
    assert node.ads.evaluator("slot1", node.now).polls is polls


def test_time_is_that_of_evaluator() -> None:
    node = _node(PREEMPT=f"time() > {BEGIN_S + 5}", KILL=f"CurrentTime > {BEGIN_S + 5}")
    for after_s, is_over in ((5.0, False), (1.0, True)):
        node.poll(after_s)
        evaluator = node.ads.evaluator("slot1", node.now)
        assert [evaluator.truth("PREEMPT"), evaluator.truth("KILL")] == [is_over, is_over]


def test_built_in_policy_starts_and_keeps_all_jobs() -> None:
    evaluator = BuiltInPolicyEvaluator()
    assert [evaluator.truth(name) for name in ("START", "CONTINUE", "WANT_VACATE")] == [True] * 3
    assert [evaluator.truth(name) for name in ("IS_OWNER", "SUSPEND", "PREEMPT", "KILL", "WANT_SUSPEND")] == [False] * 5
    assert (evaluator.number("CLAIM_WORKLIFE"), evaluator.number("MaxJobRetirementTime")) == (1200.0, 0.0)
    assert (evaluator.polls, evaluator.text("WANT_HOLD_REASON"), evaluator.job_number("MaxJobRetirementTime")) == (
        False,
        None,
        None,
    )
