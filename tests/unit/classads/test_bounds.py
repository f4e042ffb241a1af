"""What users may not bring as an expression, since evaluating it could keep a server busy or is left to chance."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import InvalidClassAdError
from pilotage.classads.limits import DEEPEST_EXPRESSION, LARGEST_EXPRESSION, bounds_fault


def why_not(text: str) -> str:
    with pytest.raises(InvalidClassAdError) as refused:
        compile_bounded(text)
    return str(refused.value)


def test_an_expression_may_be_so_long_and_no_longer() -> None:
    assert compile_bounded(text := '"' + "x" * (LARGEST_EXPRESSION - 2) + '"').text == text
    assert "4097 bytes long, at most 4096" in why_not('"' + "x" * (LARGEST_EXPRESSION - 1) + '"')


def test_brackets_may_nest_so_deep_and_no_deeper() -> None:
    assert compile_bounded(text := "(" * DEEPEST_EXPRESSION + "1" + ")" * DEEPEST_EXPRESSION).text == text
    assert "nest 51 deep" in why_not("(" * 51 + "1" + ")" * 51)


@pytest.mark.parametrize("operator", ["&&", "||", "+"])
def test_a_chain_that_cannot_be_evaluated_is_refused_when_it_comes(operator: str) -> None:
    assert compile_bounded(text := operator.join(["x"] * 300)).text == text
    assert "has more operators than can be evaluated" in why_not(operator.join(["x"] * 500))


@pytest.mark.parametrize("text", ["random(5) > 1", "'random'(5) > 1", 'eval("random(5)") > 1'])
def test_chance_is_refused_wherever_it_hides(text: str) -> None:
    why_not(text)


def test_a_name_that_escapes_could_hide_is_refused() -> None:
    assert "a quoted name has a backslash" in why_not("'\\162andom'(5)")


@pytest.mark.parametrize("text", ['eval("MY.Colour") =?= TARGET.Paint', "'eval' ( /* so */ \"x\")", "evaluation(1)"])
def test_a_plain_text_may_be_evaluated(text: str) -> None:
    assert bounds_fault(text) is None


@pytest.mark.parametrize("text", ["eval(A)", 'eval("A" + "B")', "'EVAL'(strcat(A, B))", 'eval("a\\"b")', "eval()"])
def test_a_text_that_is_made_up_may_not_be_evaluated(text: str) -> None:
    assert "eval takes a plain text only" in why_not(text)


def test_what_an_evaluated_text_says_is_bounded_too() -> None:
    assert 'in eval("eval(A)"): eval takes a plain text only' in why_not('eval("eval(A)")')
    assert "hides what it calls" in why_not('countMatches(eval("countMatches(A, B)"), C)')


@pytest.mark.parametrize(
    "text",
    [
        "countMatches(MY.RequireGPUs, TARGET.AvailableGPUs) >= RequestGPUs && countMatches(A, B) > 1",
        'replaceAll("a", strcat(x, "b"), "c") == regexps("(x)", y, "z")',
        "(countMatches) > countMatches(A, B)",
    ],
)
def test_functions_that_multiply_may_stand_side_by_side(text: str) -> None:
    assert compile_bounded(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "evalInEachContext(countMatches(A, B), C)",
        'replaceall("a", strcat(replaceAll("a", "b", "c"), "d"), "e")',
        'regexps("a", (("b" + \'RegExpS\'("a", "b", "c"))), "d")',
    ],
)
def test_functions_that_multiply_may_not_stand_inside_one_another(text: str) -> None:
    assert "could take too long" in why_not(text)
