"""The cache of evaluation results, keyed by the values of all attributes that an expression depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, NoValue, Result, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression
from pilotage_server.core.classads.evaluation import EvaluationCache, JobExpressions, SlotExpression
from pilotage_server.core.classads.views import MAX_PROJECTIONS, AdSnapshot, AdView


def an_ad(time_dependent: Mapping[str, AdValue] | None = None, **attributes: Any) -> AdSnapshot:
    """Return an ad of these attributes; `time_dependent` are those that hold at one time only."""
    current = time_dependent or {}
    return AdSnapshot(AdView(attributes, time_dependent=frozenset(current)), lambda: current)


def static_ad(attributes: Mapping[str, AdValue]) -> AdSnapshot:
    """Return an ad without time-dependent attributes."""
    return AdSnapshot(AdView(attributes), dict)


def expression(text: str) -> Expression:
    return Expression(text)


def of_slot(text: str, slot: AdSnapshot, job: AdSnapshot, evaluations: EvaluationCache | None = None) -> Result:
    """Evaluate an expression of the slot for the job."""
    return SlotExpression(text, slot, EvaluationCache() if evaluations is None else evaluations).value(job)


def of_job(text: str, slot: AdSnapshot, job: AdSnapshot, evaluations: EvaluationCache | None = None) -> Result:
    """Evaluate an expression of the job for the slot."""
    return JobExpressions(slot, EvaluationCache() if evaluations is None else evaluations).value(text, job)


def test_unscoped_name_is_looked_up_in_own_ad_first() -> None:
    slot, job = an_ad(both=1, mine=2), an_ad(both=10, theirs=20)
    assert of_slot("both + mine + theirs", slot, job) == 23
    assert of_job("both + mine + theirs", slot, job) == 32


def test_attribute_expression_is_evaluated_in_its_own_ad() -> None:
    slot = an_ad(start=expression("low_load && TARGET.wants"), low_load=expression("load < 0.5"), load=0.2)
    assert of_slot("start", slot, an_ad(wants=True)) is True
    assert of_slot("start", slot, an_ad(wants=False)) is False
    assert (
        of_slot("start", an_ad(start=expression("low_load"), low_load=expression("load < 0.5"), load=2.0), an_ad())
        is False
    )


def test_mutual_references_of_two_ads_are_followed() -> None:
    slot_attributes: dict[str, Any] = {"start": expression("TARGET.size <= room"), "room": 4}
    job = an_ad(size=expression("TARGET.factor * 2"))
    assert of_slot("start", an_ad(**slot_attributes, factor=2), job) is True
    assert of_slot("start", an_ad(**slot_attributes, factor=3), job) is False
    assert of_slot("start", an_ad(**slot_attributes), job) is NoValue.UNDEFINED


def test_slot_attribute_refers_to_the_matching_job() -> None:
    slot = an_ad(room=expression("TARGET.wants + 1"))
    assert of_job("TARGET.room > 4", slot, an_ad(wants=4)) is True
    assert of_job("TARGET.room > 4", slot, an_ad(wants=3)) is False


def test_cyclic_attributes_have_no_value() -> None:
    slot = an_ad(a=expression("b"), b=expression("TARGET.c"))
    assert isinstance(of_slot("a", slot, an_ad(c=expression("TARGET.a"))), NoValue)


def test_dynamic_reference_is_resolved_in_both_ads() -> None:
    slot = an_ad(slot9_state="Claimed")
    job = an_ad(wanted_state="Claimed")
    assert of_slot('eval(strcat("slot", 8 + 1, "_State")) == TARGET.wanted_state', slot, job) is True
    assert of_slot('eval(strcat("wanted", "_state"))', slot, job) == "Claimed"
    assert of_slot('eval("wanted" + "_state")', slot, job) is NoValue.ERROR
    assert of_slot('TARGET["wanted_state"]', slot, job) == "Claimed"


def test_dynamic_reference_from_own_values_is_cached() -> None:
    evaluations = EvaluationCache()
    text = 'eval(strcat("slot", own + 8, "_State")) =!= "Claimed" && TARGET.small'
    for number in range(3):
        slot = an_ad(own=1, slot9_state="Owner", other=number)
        assert of_slot(text, slot, an_ad(small=True, id=number), evaluations) is True
    assert len(evaluations) == 1
    assert of_slot(text, an_ad(own=1, slot9_state="Claimed"), an_ad(small=True), evaluations) is False


def test_equal_referenced_values_are_evaluated_once() -> None:
    evaluations = EvaluationCache()
    for number in range(5):
        slot, job = an_ad(load=1, name=f"slot{number}"), an_ad(size=2, id=number)
        assert of_slot("load < TARGET.size", slot, job, evaluations) is True
        assert of_job("size > TARGET.load", slot, job, evaluations) is True
    assert len(evaluations) == 2


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), ("1", 1), ("a", "A")])
def test_similar_values_of_other_types_are_distinguished(one: AdValue, other: AdValue) -> None:
    evaluations = EvaluationCache()
    slot = an_ad(known=one)
    assert of_slot("known =?= TARGET.x", slot, an_ad(x=one), evaluations) is True
    assert of_slot("known =?= TARGET.x", slot, an_ad(x=other), evaluations) is False


def test_results_of_time_dependent_attributes_are_not_cached() -> None:
    evaluations = EvaluationCache()
    for now, is_late in ((1, False), (100, True)):
        slot = an_ad({"mycurrenttime": now}, since=10)
        assert of_slot("time() - since > 50", slot, an_ad(), evaluations) is is_late
    job = an_ad({"prio": 2.0})
    assert of_slot("TARGET.prio > 1", an_ad(), job, evaluations) is True
    assert of_job("TARGET.since > 1 && prio > 1", an_ad(since=2), job, evaluations) is True
    assert len(evaluations) == 0


def test_time_dependent_attribute_hides_that_of_the_ad() -> None:
    view = AdView({"remoteuserprio": 1.0}, time_dependent=frozenset({"remoteuserprio"}))
    assert of_slot("remoteuserprio", AdSnapshot(view, dict), an_ad()) is NoValue.UNDEFINED
    assert of_slot("remoteuserprio", AdSnapshot(view, lambda: {"remoteuserprio": 2.0}), an_ad()) == 2.0


def test_number_of_tables_is_bounded() -> None:
    evaluations = EvaluationCache(most_tables=3)
    for number in range(10):
        of_slot("a + TARGET.b", an_ad(a=number), an_ad(b=1), evaluations)
    assert len(evaluations) == 3


def test_number_of_results_is_bounded() -> None:
    evaluations = EvaluationCache(most_results=30)
    for number in range(200):
        slot = an_ad(a=number)
        for other in range(10):
            of_slot("a + TARGET.b", slot, an_ad(b=other), evaluations)
    assert 0 < len(evaluations) <= 30


def test_number_of_projections_of_an_ad_is_bounded() -> None:
    slot, job = an_ad(), an_ad(b=1)
    for number in range(3 * MAX_PROJECTIONS):
        assert of_slot(f"TARGET.b + TARGET.unknown{number}", slot, job) is NoValue.UNDEFINED
    assert len(job.view.projections) <= MAX_PROJECTIONS


@pytest.mark.parametrize("text", ["formatTime() == TARGET.b", "'CurrentTime' > TARGET.b", "'time'() > TARGET.b"])
def test_results_of_time_functions_are_not_cached(text: str) -> None:
    evaluations = EvaluationCache()
    of_slot(text, an_ad({"mycurrenttime": 5}), an_ad(b=1), evaluations)
    assert len(evaluations) == 0


def test_value_that_no_ad_can_hold_evaluates_to_error() -> None:
    assert of_slot("TARGET.big > 1", an_ad(), an_ad(big=2**70)) is NoValue.ERROR


NAMES = ("a", "b", "c", "d")
ATOMS = st.one_of(
    st.sampled_from([f"{scope}{name}" for scope in ("", "MY.", "TARGET.") for name in NAMES]),
    st.sampled_from(["1", "2.5", "true", "false", '"x"', '"b"', '"TARGET.c"', "undefined"]),
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||", "+", "<", "==", "=?="]), inner).map(" ".join).map("({})".format),
        st.tuples(inner, inner, inner).map(lambda three: "ifThenElse({}, {}, {})".format(*three)),
        inner.map("isUndefined({})".format),
        st.sampled_from(NAMES).map('eval("{}")'.format),
        inner.map("eval({})".format),
    ),
    max_leaves=6,
)
VALUES = st.one_of(
    st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 1.0, "x", "X", "d", "MY.a"]), EXPRESSIONS.map(Expression)
)
ADS = st.dictionaries(st.sampled_from(NAMES), VALUES)


@given(EXPRESSIONS, st.lists(ADS, min_size=1, max_size=3), st.lists(ADS, min_size=1, max_size=3))
def test_cached_result_equals_evaluation_of_the_whole_ads(
    text: str, slots: list[dict[str, AdValue]], jobs: list[dict[str, AdValue]]
) -> None:
    evaluations, compiled = EvaluationCache(), compile_expression(text)
    for slot in slots:
        for job in jobs:
            slot_ad, job_ad = static_ad(slot), static_ad(job)
            assert of_slot(text, slot_ad, job_ad, evaluations) == evaluate(compiled, Ad(slot), Ad(job))
            assert of_job(text, slot_ad, job_ad, evaluations) == evaluate(compiled, Ad(job), Ad(slot))
