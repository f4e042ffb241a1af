"""The bounded store of parts of slot ads, by their checksums."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import Expression, InvalidClassAdError
from pilotage.errors import InvalidInputError
from pilotage.text import fold
from pilotage.values.offers import MAX_PART_BYTES
from pilotage_server.core.classads.parts import LONGEST_EXPRESSION, MAX_COMMAS, AdPartStore, ParsedAdPart


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def add_part(parts: AdPartStore, text: str) -> str:
    """Add a part and return its key."""
    parts.add(key_of(text), text)
    return key_of(text)


def test_part_is_parsed_with_folded_names() -> None:
    parts = AdPartStore()
    key = add_part(parts, '[Start = time() > 5; LoadAvg = 0.5; Name = "a"]')
    assert parts.get(key).attributes == {"start": Expression("MyCurrentTime > 5"), "loadavg": 0.5, "name": "a"}
    assert parts.get(key).fault == ""


@pytest.mark.parametrize("text", ["", "Start = True", "[Start = ", "[Start = 1; = 2]", "[a = /* ]"])
def test_unreadable_part_is_kept_with_its_fault(text: str) -> None:
    parts = AdPartStore()
    assert parts.get(add_part(parts, text)).fault


def test_rejects_key_that_does_not_match_the_text() -> None:
    parts = AdPartStore()
    with pytest.raises(InvalidInputError, match="SHA-256"):
        parts.add(key_of("[a = 1]"), "[a = 2]")
    assert parts.missing([key_of("[a = 1]")]) == (key_of("[a = 1]"),)


def test_rejects_part_that_is_too_large() -> None:
    text = '[a = "' + "x" * MAX_PART_BYTES + '"]'
    with pytest.raises(InvalidInputError, match="at most"):
        AdPartStore().add(key_of(text), text)


def test_least_recently_used_part_is_evicted_first() -> None:
    parts = AdPartStore(most=2)
    first, second = add_part(parts, "[a = 1]"), add_part(parts, "[a = 2]")
    parts.get(first)
    add_part(parts, "[a = 3]")
    assert parts.missing([first, second]) == (second,)


def test_size_of_all_parts_is_bounded() -> None:
    parts = AdPartStore(most_bytes=2 * ParsedAdPart("[a = 1]").size)
    keys = [add_part(parts, f"[a = {number}]") for number in range(5)]
    assert parts.missing(keys) == tuple(keys[:3])
    add_part(parts, "[a = 4]")
    assert len(parts) == 2


def test_part_size_counts_every_attribute() -> None:
    long = ParsedAdPart('[a = "' + "x" * 1000 + '"]')
    many = ParsedAdPart("[" + "; ".join(f"a{n}=1" for n in range(140)) + "]")
    assert many.size > 5 * long.size


def test_too_long_expression_is_a_fault() -> None:
    assert ParsedAdPart("[a = b + " + " " * LONGEST_EXPRESSION + "1]").fault == ""
    assert (
        "a is longer than"
        in ParsedAdPart("[a = 1; A = {b == " + "long_name == " * (LONGEST_EXPRESSION // 12) + "1}]").fault
    )


def test_expression_that_would_overflow_the_stack_is_a_fault() -> None:
    for operand in ("1", "time()", "(1)", "a.b"):
        assert "in a row" in ParsedAdPart(f"[a = {'+'.join([operand] * 30_000)}]").fault


def test_too_many_elements_of_lists_are_a_fault() -> None:
    assert ParsedAdPart(f"[a = {{{','.join(['{}'] * MAX_COMMAS)}}}]").fault == ""
    assert "commas" in ParsedAdPart(f"[a = {{{','.join(['{}'] * (MAX_COMMAS + 2))}}}]").fault


def test_too_large_ad_is_a_fault() -> None:
    assert "at most" in ParsedAdPart('[a = "' + "x" * MAX_PART_BYTES + '"]').fault


NAMES = st.sampled_from(["LoadAvg", "loadavg", "State", "true", "Parent", "a b", "x1", "is"])
LITERALS = st.one_of(
    st.integers(-5, 10**20).map(str),
    st.floats(0, 1e6).map(str),
    st.sampled_from(["010", "0.10", "1.", "true", "TRUE", "x1", '"a; b"', '"a\\"b"', '"é"', '""', "1 + 1", "{1}", ""]),
    st.text("aZ9 ;=[]", max_size=4).map(lambda text: f'"{text}"'),
)


@given(st.lists(st.tuples(NAMES, LITERALS), max_size=4), st.sampled_from(["; ", ";", " ; "]))
def test_literals_are_parsed_as_by_the_classad_library(attributes: list[tuple[str, str]], separator: str) -> None:
    text = "[" + separator.join(f"{name} = {literal}" for name, literal in attributes) + "]"
    part = ParsedAdPart(text)
    try:
        expected = {fold(name): value for name, value in Ad.read(text).plain().items()}
    except InvalidClassAdError:
        assert part.fault
    else:
        assert part.attributes is not None
        # repr distinguishes 1, 1.0 and True; the library has its own order
        assert repr(sorted(part.attributes.items())) == repr(sorted(expected.items()))
