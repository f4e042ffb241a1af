"""Conformance with DIRAC's matching: facts from DIRAC's tests and code, compared with the behaviour here.

`JUDGEMENTS` has an entry for each fact. Facts that hold here, or that were decided otherwise, are evaluated by the
function in `EVALUATORS` for their kind. A kind with such a function has no fact that is judged ELSEWHERE.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.dirac_facts import EVALUATORS, VERDICTS, Case, FactStatus


def names_judged(fact_status: FactStatus) -> list[str]:
    return [name for name, judgement in VERDICTS.items() if judgement.fact_status is fact_status]


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> dict[str, Case]:
    """Return the facts by name."""
    facts = json.loads((shared_data / "cases/dirac-matching.json").read_text())["cases"]
    return {fact["name"]: fact for fact in facts}


def test_judgements_cover_exactly_all_facts(cases: dict[str, Case]) -> None:
    assert len(cases) == 84
    assert VERDICTS.keys() == cases.keys()


def test_each_deviation_has_a_reason() -> None:
    for name, judgement in VERDICTS.items():
        assert judgement.fact_status is FactStatus.HOLDS or judgement.why, name
        assert judgement.fact_status is not FactStatus.OTHERWISE or judgement.why.startswith("§"), name


@pytest.mark.parametrize(
    "name", [name for name, judgement in VERDICTS.items() if judgement.fact_status is FactStatus.HOLDS]
)
def test_fact_holds_as_in_dirac(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    assert EVALUATORS[case["kind"]](case) == case["expected"]


@pytest.mark.parametrize(
    "name", [name for name, judgement in VERDICTS.items() if judgement.fact_status is FactStatus.OTHERWISE]
)
def test_deviation_from_dirac_is_as_documented(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    outcome = EVALUATORS[case["kind"]](case)
    assert outcome == VERDICTS[name].own_result
    assert outcome != case["expected"]


def test_facts_tested_elsewhere_have_no_evaluator_here(cases: dict[str, Case]) -> None:
    kinds_elsewhere = {
        cases[name]["kind"] for name, judgement in VERDICTS.items() if judgement.fact_status is FactStatus.ELSEWHERE
    }
    assert kinds_elsewhere.isdisjoint(EVALUATORS)
