"""Parsing of values and expressions with HTCondor's ClassAd library, and what is refused before it."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.library import (
    Expression,
    InvalidClassAdError,
    check_expression,
    expression_from_old_syntax,
    htcondor_library,
    is_available,
    parse_value,
    quoted,
)
from pilotage.classads.tokens import outline_fault, tokens


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4000", 4000),
        ("-1", -1),
        ("1.5", 1.5),
        ("TRUE", True),
        ('"a \\"b\\" \\\\"', 'a "b" \\'),
        ("{}", ()),
        ('{1, {2, "x"}}', (1, (2, "x"))),
        ('[ a = 1; b = { "x" } ]', {"a": 1, "b": ("x",)}),
        ("24 * 3600", 86400),
        ("other.Memory > 4", Expression("other.Memory > 4")),
        ("undefined", Expression("undefined")),
        ("1 // a comment", 1),
    ],
)
def test_value_keeps_its_type_and_expression_its_text(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "1; other = 2",
        "1] [x = 2",
        "{1, 2",
        '"a',
        '{"a" "b"}',
        "",
        "/* no end",
        "9223372036854775808",
        "(" * 150 + ")" * 150,
        "+".join("1" * 100_000),
        ".".join("a" * 100_000),
        "a" + "[1]" * 100_000,
        "\\'" * 50_000,
        "'\\" * 50_000,
    ],
)
def test_refuses_text_that_the_library_would_misread(text: str) -> None:
    with pytest.raises(InvalidClassAdError):
        parse_value(text)
    with pytest.raises(InvalidClassAdError):
        check_expression(text)


def test_refuses_integer_beyond_64_bits() -> None:
    with pytest.raises(InvalidClassAdError, match="64 bits"):
        parse_value("{1, 18446744073709551616}")
    with pytest.raises(InvalidClassAdError, match="64 bits"):
        parse_value("9" * 5000)
    assert parse_value("9223372036854775807") == 2**63 - 1


def test_arithmetic_without_result_stays_an_expression() -> None:
    assert parse_value("1 / 0") == Expression("1 / 0")


def test_backslash_of_old_syntax_is_literal() -> None:
    assert expression_from_old_syntax(r'regexp("a\.b", Name)') == r'regexp("a\\.b", Name)'
    assert expression_from_old_syntax(r'Name == "say \"x\""') == r'Name == "say \"x\""'


def test_library_is_imported_without_the_machine_configuration() -> None:
    before = os.environ.get("CONDOR_CONFIG")
    assert is_available()
    assert hasattr(htcondor_library(), "Submit")
    assert os.environ.get("CONDOR_CONFIG") == before


@given(st.text())
def test_joined_tokens_are_the_text(text: str) -> None:
    assert "".join(token.text for token in tokens(text)) == text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_quoted_string_round_trips(text: str) -> None:
    assert outline_fault(quoted(text)) is None
    assert parse_value(quoted(text)) == text


@given(st.text(alphabet="ab1.,;\"'{}[]()=<>&| \\\n/*", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(InvalidClassAdError):
        parse_value(text)
