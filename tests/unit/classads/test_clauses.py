"""Which part of an expression stands in the way, and on what values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.clauses import clauses, failing_clauses
from pilotage.classads.evaluation import Ad, compile_expression, evaluate, is_true

JOB = Ad({"RequestMemory": 4000, "Owner": "alice"})
SLOT = Ad({"Memory": 2000, "Arch": "X86_64", "Site": "CERN"})


def told(text: str) -> list[str]:
    """Return what is said of the clauses that fail for this job and this slot."""
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
def test_what_must_all_be_true_is_taken_apart_where_that_changes_no_meaning(text: str, parts: tuple[str, ...]) -> None:
    assert clauses(text) == parts


def test_only_what_is_not_true_is_told_with_the_values_it_looks_at() -> None:
    text = 'TARGET.Memory >= MY.RequestMemory && (Arch == "X86_64") && GlueHost == "h"'
    assert told(text) == [
        "TARGET.Memory >= MY.RequestMemory is false (TARGET.Memory = 2000, MY.RequestMemory = 4000)",
        'GlueHost == "h" is undefined (GlueHost = undefined)',
    ]


def test_an_attribute_alone_and_a_constant_need_no_values() -> None:
    assert told("HasCvmfs && false") == ["HasCvmfs is undefined", "false is false"]


def test_the_words_is_and_isnt_are_told_as_signs() -> None:
    assert told('Absent is true && Site isnt undefined && Site ISNT "CERN"') == [
        "Absent =?= true is false (Absent = undefined)",
        'Site =!= "CERN" is false (Site = "CERN")',
    ]


def test_one_and_a_text_are_not_true() -> None:
    assert told('1 && "true"') == ["1 is 1", '"true" is "true"']


def test_a_long_clause_is_shortened() -> None:
    (clause,) = told("Memory > " + " + ".join(["1000"] * 60))
    assert "…" in clause
    assert len(clause) < 200


ATOMS = st.sampled_from(["true", "false", "Memory > 1000", "Memory > 3000", "Absent", "RequestMemory == 4000", "error"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda three: "{} ? {} : {}".format(*(f"({each})" for each in three))),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_an_expression_is_true_just_when_no_clause_fails(text: str) -> None:
    assert (failing_clauses(text, JOB, SLOT) == []) is is_true(evaluate(compile_expression(text), JOB, SLOT))
