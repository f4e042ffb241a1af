"""Bounds of users' expressions: refused are those that are random, or whose evaluation could take too long."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import InvalidClassAdError
from pilotage.classads.limits import DEEPEST_EXPRESSION, LARGEST_EXPRESSION, bounds_fault


def refusal_of(text: str) -> str:
    with pytest.raises(InvalidClassAdError) as refused:
        compile_bounded(text)
    return str(refused.value)


def test_length_is_bounded() -> None:
    assert compile_bounded(text := '"' + "x" * (LARGEST_EXPRESSION - 2) + '"').text == text
    assert "4097 bytes long, at most 4096" in refusal_of('"' + "x" * (LARGEST_EXPRESSION - 1) + '"')


def test_nesting_of_brackets_is_bounded() -> None:
    assert compile_bounded(text := "(" * DEEPEST_EXPRESSION + "1" + ")" * DEEPEST_EXPRESSION).text == text
    assert "nest 51 deep" in refusal_of("(" * 51 + "1" + ")" * 51)


@pytest.mark.parametrize("operator", ["&&", "||", "+"])
def test_number_of_chained_operators_is_bounded(operator: str) -> None:
    assert compile_bounded(text := operator.join(["x"] * 300)).text == text
    assert "has more operators than can be evaluated" in refusal_of(operator.join(["x"] * 500))


@pytest.mark.parametrize("text", ["random(5) > 1", "'random'(5) > 1", 'eval("random(5)") > 1'])
def test_refuses_random_function_in_every_form(text: str) -> None:
    refusal_of(text)


def test_refuses_escape_in_quoted_name() -> None:
    assert "a quoted name has a backslash" in refusal_of("'\\162andom'(5)")


@pytest.mark.parametrize("text", ['eval("MY.Colour") =?= TARGET.Paint', "'eval' ( /* so */ \"x\")", "evaluation(1)"])
def test_eval_accepts_a_string_literal(text: str) -> None:
    assert bounds_fault(text) is None


@pytest.mark.parametrize("text", ["eval(A)", 'eval("A" + "B")', "'EVAL'(strcat(A, B))", 'eval("a\\"b")', "eval()"])
def test_eval_refuses_a_computed_string(text: str) -> None:
    assert "eval takes a plain text only" in refusal_of(text)


def test_evaluated_string_is_bounded_too() -> None:
    assert 'in eval("eval(A)"): eval takes a plain text only' in refusal_of('eval("eval(A)")')
    assert "hides what it calls" in refusal_of('countMatches(eval("countMatches(A, B)"), C)')


@pytest.mark.parametrize(
    "text",
    [
        "countMatches(MY.RequireGPUs, TARGET.AvailableGPUs) >= RequestGPUs && countMatches(A, B) > 1",
        'replaceAll("a", strcat(x, "b"), "c") == regexps("(x)", y, "z")',
        "(countMatches) > countMatches(A, B)",
    ],
)
def test_costly_functions_may_occur_in_sequence(text: str) -> None:
    assert compile_bounded(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "evalInEachContext(countMatches(A, B), C)",
        'replaceall("a", strcat(replaceAll("a", "b", "c"), "d"), "e")',
        'regexps("a", (("b" + \'RegExpS\'("a", "b", "c"))), "d")',
    ],
)
def test_costly_functions_may_not_be_nested(text: str) -> None:
    assert "could take too long" in refusal_of(text)
