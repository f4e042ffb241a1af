"""What DIRAC's own tests and code say about matching, fact by fact: which of it holds here.

A fact is judged in `JUDGEMENTS` by its name. What holds, or was decided otherwise, is evaluated by the function
that `EVALUATORS` has for the fact's kind; a kind that gets its function takes its facts out of ELSEWHERE.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.dirac_facts import EVALUATORS, JUDGEMENTS, Case, Standing


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> dict[str, Case]:
    """Return the facts by name."""
    facts = json.loads((shared_data / "cases/dirac-matching.json").read_text())["cases"]
    return {fact["name"]: fact for fact in facts}


def test_the_table_judges_every_fact_and_no_other(cases: dict[str, Case]) -> None:
    assert len(cases) == 84
    assert JUDGEMENTS.keys() == cases.keys()


def test_what_does_not_hold_says_why() -> None:
    for name, judgement in JUDGEMENTS.items():
        assert judgement.standing is Standing.HOLDS or judgement.why, name
        assert judgement.standing is not Standing.OTHERWISE or judgement.why.startswith("§"), name


@pytest.mark.parametrize("name", [name for name, found in JUDGEMENTS.items() if found.standing is Standing.HOLDS])
def test_a_fact_that_holds_comes_out_as_dirac_says(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    assert EVALUATORS[case["kind"]](case) == case["expected"]


@pytest.mark.parametrize("name", [name for name, found in JUDGEMENTS.items() if found.standing is Standing.OTHERWISE])
def test_a_fact_that_was_decided_otherwise_comes_out_as_we_say(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    outcome = EVALUATORS[case["kind"]](case)
    assert outcome == JUDGEMENTS[name].instead
    assert outcome != case["expected"]


def test_a_fact_is_left_to_others_only_while_nothing_here_evaluates_it(cases: dict[str, Case]) -> None:
    left = {cases[name]["kind"] for name, found in JUDGEMENTS.items() if found.standing is Standing.ELSEWHERE}
    assert left.isdisjoint(EVALUATORS)
