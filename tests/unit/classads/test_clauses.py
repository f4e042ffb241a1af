"""The clauses of an expression that fail, and the values that make them fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.clauses import clauses, failing_clauses
from pilotage.classads.evaluation import Ad, compile_expression, evaluate, is_true

JOB = Ad({"RequestMemory": 4000, "Owner": "alice"})
SLOT = Ad({"Memory": 2000, "Arch": "X86_64", "Site": "CERN"})


def failing(text: str) -> list[str]:
    """Return the texts of the clauses that fail for the job and the slot."""
    return [str(clause) for clause in failing_clauses(text, JOB, SLOT)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("a && b", ("a", "b")),
        (" ( (a) && (b && c) ) ", ("a", "b", "c")),
        ("a && (b || c)", ("a", "b || c")),
        ("a && b || c", ("a && b || c",)),
        ("a ? b && c : d", ("a ? b && c : d",)),
        ("(a) && (b)", ("a", "b")),
        ("f(a && b) && {c && d} =?= e", ("f(a && b)", "{c && d} =?= e")),
        ('x == "a && b" && y', ('x == "a && b"', "y")),
        ("a /* && */ && b // && c", ("a /* && */", "b // && c")),
        ("a & b && c", ("a & b", "c")),
        ("a =!= b && c =?= d ? e : f", ("a =!= b && c =?= d ? e : f",)),
    ],
)
def test_splits_conjunctions(text: str, parts: tuple[str, ...]) -> None:
    assert clauses(text) == parts


def test_failing_clauses_show_the_values_of_their_attributes() -> None:
    text = 'TARGET.Memory >= MY.RequestMemory && (Arch == "X86_64") && GlueHost == "h"'
    assert failing(text) == [
        "TARGET.Memory >= MY.RequestMemory is false (TARGET.Memory = 2000, MY.RequestMemory = 4000)",
        'GlueHost == "h" is undefined (GlueHost = undefined)',
    ]


def test_single_attribute_and_constant_show_no_values() -> None:
    assert failing("HasCvmfs && false") == ["HasCvmfs is undefined", "false is false"]


def test_is_and_isnt_are_shown_as_operators() -> None:
    assert failing('Absent is true && Site isnt undefined && Site ISNT "CERN"') == [
        "Absent =?= true is false (Absent = undefined)",
        'Site =!= "CERN" is false (Site = "CERN")',
    ]


def test_number_and_string_are_not_true() -> None:
    assert failing('1 && "true"') == ["1 is 1", '"true" is "true"']


def test_long_clause_is_shortened() -> None:
    (clause,) = failing("Memory > " + " + ".join(["1000"] * 60))
    assert "…" in clause
    assert len(clause) < 200


ATOMS = st.sampled_from(["true", "false", "Memory > 1000", "Memory > 3000", "Absent", "RequestMemory == 4000", "error"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda three: "{} ? {} : {}".format(*(f"({operand})" for operand in three))),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_expression_is_true_exactly_when_no_clause_fails(text: str) -> None:
    assert (failing_clauses(text, JOB, SLOT) == []) is is_true(evaluate(compile_expression(text), JOB, SLOT))
