"""What a slot's expressions come to for the pilot: what is true, for which job, in which ads."""

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
def test_what_is_not_true_itself_is_neither_true_nor_false(text: str) -> None:
    assert _truth(text) is None


@pytest.mark.parametrize(("text", "truth"), [("True", True), ("FALSE", False), ("1 == 1.0", True), ("!True", False)])
def test_booleans_are_what_they_are(text: str, truth: bool) -> None:
    assert _truth(text) is truth


def test_names_are_looked_for_in_the_slot_and_then_in_the_job() -> None:
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
def test_the_vanilla_variant_counts_for_vanilla_jobs_where_it_is_a_boolean(
    variant: str, universe: int | Expression, truth: bool
) -> None:
    node = _node(PREEMPT="False", PREEMPT_VANILLA=variant)
    node.ads.job_entered("slot1", job_ad(JobUniverse=universe), "1.0", node.now)
    assert node.ads.evaluator("slot1", node.now).truth("PREEMPT") is truth


def test_numbers_and_texts_are_given_only_where_there_are_some() -> None:
    node = _node(MaxJobRetirementTime="60 * 2", CLAIM_WORKLIFE='"long"', WANT_HOLD_REASON='strcat("no", "thing")')
    judge = node.ads.evaluator("slot1", node.now)
    assert (judge.number("MaxJobRetirementTime"), judge.number("CLAIM_WORKLIFE")) == (120.0, None)
    assert judge.number("WANT_HOLD_SUBCODE") is None
    assert (judge.text("WANT_HOLD_REASON"), judge.text("MaxJobRetirementTime")) == ("nothing", None)


def test_the_jobs_own_numbers_are_evaluated_in_its_ad() -> None:
    node = _node()
    assert node.ads.evaluator("slot1", node.now).job_number("MaxJobRetirementTime") is None
    job = job_ad(MaxJobRetirementTime=Expression("Base + TARGET.SlotID"), Base=100)
    node.ads.job_entered("slot1", job, "1.0", node.now)
    judge = node.ads.evaluator("slot1", node.now)
    assert judge.job_number("MaxJobRetirementTime") == 101.0
    assert judge.job_number("JobMaxVacateTime") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", Expression("{3}")])
def test_what_is_no_finite_number_is_no_number(value: float | str | Expression) -> None:
    assert as_number(value) is None


@pytest.mark.parametrize(
    ("result", "nice"), [(0, 0), (7, 7), (25, 19), (-3, 0), (5.0, 10), (True, 10), ("5", 10), (Expression("{5}"), 10)]
)
def test_a_nice_value_is_bounded_and_nonsense_is_ten(result: int | float | str | Expression, nice: int) -> None:
    assert as_nice(result) == nice


@pytest.mark.parametrize("scope", ["", "TARGET."])
@pytest.mark.parametrize(("long", "nice"), [(True, 15), (False, 5), ("true", 5)])
def test_both_published_forms_of_the_nice_value_work(scope: str, long: bool | str, nice: int) -> None:
    node = _node(JOB_RENICE_INCREMENT=f"5 + (10 * ({scope}LongRunningJob =?= True))")
    assert node.ads.renice("slot1", job_ad(LongRunningJob=long), node.now) == nice


@pytest.mark.parametrize(("cpus", "starts"), [(8, True), (8.0, False), (16, False), (1, False), ("8", False)])
def test_a_start_is_asked_of_the_job_that_came_not_of_the_one_inside(cpus: float | str, starts: bool) -> None:
    node = _node(START="RequestCpus =?= 8")
    node.ads.job_entered("slot1", job_ad(RequestCpus=1 if starts else 8), "1.0", node.now)
    assert node.ads.starts("slot1", job_ad(RequestCpus=cpus), node.now) is starts


def test_an_undefined_start_is_no_start_for_a_job_and_no_refusal_without_one() -> None:
    node = _node(START="TARGET.Wanted")
    assert node.ads.starts("slot1", job_ad(), node.now) is None
    assert node.ads.evaluator("slot1", node.now).truth("IS_OWNER") is False


@pytest.mark.parametrize("text", ["nonsense", "[Owner = ]"])
def test_a_job_without_a_readable_ad_does_not_start(text: str) -> None:
    node = _node()
    assert node.ads.starts("slot1", text, node.now) is None
    with pytest.raises(InvalidClassAdError):
        node.ads.job_entered("slot1", text, "1.0", node.now)


def test_a_job_whose_ad_did_not_come_has_an_empty_one() -> None:
    node = _node(START="TARGET.Owner is undefined")
    assert node.ads.starts("slot1", "", node.now) is True


@pytest.mark.parametrize(("text", "rank"), [("TARGET.Good", 1.0), ("TARGET.Prio * 2", 6.0), ("TARGET.None", 0.0)])
def test_a_rank_is_a_number_whatever_it_comes_to(text: str, rank: float) -> None:
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
def test_a_slot_with_a_job_is_worth_offering_where_it_may_prefer_another(texts: dict[str, str], preempts: bool) -> None:
    assert _node(**texts).ads.preempts is preempts


@pytest.mark.parametrize(
    ("texts", "polls"),
    [
        ({}, False),
        ({"START": "False"}, True),  # IS_OWNER is true then
        ({"START": "LoadAvg < 0.3"}, True),
        ({"PREEMPT": "True"}, True),
        ({"PREEMPT": "TotalJobRunTime > 20"}, True),
        ({"SUSPEND_VANILLA": 'slot2_State == "Claimed"'}, True),
        ({"KILL": 'eval("x")'}, True),
        ({"SUSPEND": "random(2) == 1"}, True),
        ({"RANK": "TARGET.Prio"}, False),
    ],
)
def test_slots_are_polled_where_time_or_the_node_may_move_them(texts: dict[str, str], polls: bool) -> None:
    node = _node(**texts)
    assert node.ads.evaluator("slot1", node.now).polls is polls


def test_time_is_what_the_judge_was_made_for() -> None:
    node = _node(PREEMPT=f"time() > {BEGIN_S + 5}", KILL=f"CurrentTime > {BEGIN_S + 5}")
    for after_s, is_over in ((5.0, False), (1.0, True)):
        node.poll(after_s)
        judge = node.ads.evaluator("slot1", node.now)
        assert [judge.truth("PREEMPT"), judge.truth("KILL")] == [is_over, is_over]


def test_the_built_in_policy_disturbs_nobody() -> None:
    judge = BuiltInPolicyEvaluator()
    assert [judge.truth(name) for name in ("START", "CONTINUE", "WANT_VACATE")] == [True] * 3
    assert [judge.truth(name) for name in ("IS_OWNER", "SUSPEND", "PREEMPT", "KILL", "WANT_SUSPEND")] == [False] * 5
    assert (judge.number("CLAIM_WORKLIFE"), judge.number("MaxJobRetirementTime")) == (1200.0, 0.0)
    assert (judge.polls, judge.text("WANT_HOLD_REASON"), judge.job_number("MaxJobRetirementTime")) == (
        False,
        None,
        None,
    )
