"""Evaluation of expressions in the scopes of two ads: results, time, random functions, errors."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import Ad, NoValue, RandomFunctionError, Result, compile_expression, evaluate, is_true
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.tokens import with_time_from


def _value(text: str, my: dict[str, AdValue] | None = None, target: dict[str, AdValue] | None = None) -> Result:
    return evaluate(compile_expression(text), Ad(my or {}), None if target is None else Ad(target))


@pytest.mark.parametrize("value", [NoValue.UNDEFINED, NoValue.ERROR, 1, 1.0, "true", "True", Expression("true"), False])
def test_only_true_is_true(value: Result) -> None:
    assert is_true(True)
    assert not is_true(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 / 0", NoValue.ERROR),
        ("Nothing", NoValue.UNDEFINED),
        ("Nothing || true", True),
        ("1.5", 1.5),
        ('"undefined"', "undefined"),
        ('{1, true, "a\\"b"}', Expression('{1, true, "a\\"b"}')),
        ('real("INF")', Expression("inf")),
        ("true // and so on", True),
    ],
)
def test_result_keeps_its_type(text: str, value: Result) -> None:
    found = _value(text)
    assert found == value
    assert type(found) is type(value)


def test_ad_holds_values_expressions_lists_and_ads() -> None:
    my: dict[str, AdValue] = {"a": Expression("B + 1"), "b": 2, "l": (1, "x"), "r": {"deep": True}, "neg": -1}
    assert _value("A", my) == 3
    assert _value("l[1]", my) == "x"
    assert _value("r.deep && neg < 0", my) is True


def test_rejects_integer_beyond_64_bits() -> None:
    with pytest.raises(InvalidClassAdError, match="64 bits"):
        Ad({"big": 2**63})


@pytest.mark.parametrize(
    "text",
    ["time()", "time ( )", "CurrentTime", "MY.CurrentTime", "TIME()", "'time'()", "'CurrentTime'", "MY.'currenttime'"],
)
def test_time_is_that_of_the_ad(text: str) -> None:
    assert _value(text, {"MyCurrentTime": 1000}) == 1000
    assert _value(f"{text} - Began", {"MyCurrentTime": 1000}, {"Began": 10}) == 990


def test_time_in_an_attribute_is_that_of_the_ad() -> None:
    assert _value("Age", {"MyCurrentTime": 1000, "Age": Expression("time() - 5")}) == 995


@pytest.mark.parametrize(
    ("text", "equivalent"),
    [
        ("formatTime()", "formatTime(1000000)"),
        ("absTime ( ) - absTime(0)", "relTime(1000000)"),
        ("dayTime()", "real(splitTime(absTime(1000000)).Hours * 3600 + 46 * 60 + 40)"),
    ],
)
def test_time_functions_without_argument_use_the_time_of_the_ad(text: str, equivalent: str) -> None:
    assert _value(text, {"MyCurrentTime": 1_000_000}) == _value(equivalent)


@pytest.mark.parametrize(
    "text", ['"time()"', "runtime()", "time", "time(x)", "MyCurrentTime", "formatTime(x)", "'my currenttime'"]
)
def test_names_similar_to_time_are_unchanged(text: str) -> None:
    assert with_time_from("Now", text) == text


def test_random_functions_are_refused_on_request() -> None:
    with pytest.raises(RandomFunctionError):
        compile_expression("1 + Random (3)", refuse_random=True)
    with pytest.raises(RandomFunctionError):
        compile_expression("'random'(3)", refuse_random=True)
    compile_expression('"random(3)" == Random', refuse_random=True)
    compile_expression("random(3)")


@pytest.mark.parametrize("text", ["", "1; x = 2", "a b", "(", "1)("])
def test_rejects_text_that_is_not_one_expression(text: str) -> None:
    with pytest.raises(InvalidClassAdError):
        compile_expression(text)


@pytest.mark.parametrize("text", [" && ".join(["yes"] * 500), "+".join(["1"] * 2000), '"\\377"'])
def test_expression_that_the_library_cannot_evaluate_is_error(text: str) -> None:
    assert _value(text, {"yes": True}) is NoValue.ERROR
    assert Ad({"yes": True, "long": Expression(text)}).value("long") is NoValue.ERROR


def test_huge_time_format_raises_nothing() -> None:
    # The library returns the undefined content of its buffer: nothing, or invalid characters.
    assert isinstance(_value('formatTime(5, "%99999999d")', {}), str | NoValue)


@pytest.mark.parametrize("text", ["half \ud800", "zero \0"])
def test_rejects_string_that_the_library_cannot_hold(text: str) -> None:
    with pytest.raises(InvalidClassAdError, match="holds"):
        Ad({"text": text})
    with pytest.raises(InvalidClassAdError, match="holds"):
        compile_expression(f'"{text}"')
    with pytest.raises(InvalidClassAdError, match="holds"):
        Ad.read(f'[text = "{text}"]')


def test_rejects_ad_that_is_not_utf_8() -> None:
    with pytest.raises(InvalidClassAdError, match="not UTF-8"):
        Ad.read('[text = "\\377"]')
