"""Parts of slots' ads are kept by their keys, as many as there is room for."""

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
from pilotage_server.core.classads.parts import LONGEST_EXPRESSION, AdPartStore, ParsedAdPart


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def taken_in(parts: AdPartStore, text: str) -> str:
    """Take a part in and return its key."""
    parts.add(key_of(text), text)
    return key_of(text)


def test_a_part_is_read_once_and_its_names_are_folded() -> None:
    parts = AdPartStore()
    key = taken_in(parts, '[Start = time() > 5; LoadAvg = 0.5; Name = "a"]')
    assert parts.get(key).attributes == {"start": Expression("MyCurrentTime > 5"), "loadavg": 0.5, "name": "a"}
    assert parts.get(key).fault == ""


@pytest.mark.parametrize("text", ["", "Start = True", "[Start = ", "[Start = 1; = 2]", "[a = /* ]"])
def test_a_part_that_cannot_be_read_is_kept_with_the_reason(text: str) -> None:
    parts = AdPartStore()
    assert parts.get(taken_in(parts, text)).fault


def test_a_key_that_is_not_that_of_the_text_is_refused() -> None:
    parts = AdPartStore()
    with pytest.raises(InvalidInputError, match="SHA-256"):
        parts.add(key_of("[a = 1]"), "[a = 2]")
    assert parts.missing([key_of("[a = 1]")]) == (key_of("[a = 1]"),)


def test_a_part_that_is_too_large_is_refused() -> None:
    text = '[a = "' + "x" * MAX_PART_BYTES + '"]'
    with pytest.raises(InvalidInputError, match="at most"):
        AdPartStore().add(key_of(text), text)


def test_the_longest_unused_parts_are_forgotten_first() -> None:
    parts = AdPartStore(most=2)
    first, second = taken_in(parts, "[a = 1]"), taken_in(parts, "[a = 2]")
    parts.get(first)
    taken_in(parts, "[a = 3]")
    assert parts.missing([first, second]) == (second,)


def test_parts_are_forgotten_for_want_of_room_as_well() -> None:
    parts = AdPartStore(most_bytes=2 * ParsedAdPart("[a = 1]").size)
    keys = [taken_in(parts, f"[a = {number}]") for number in range(5)]
    assert parts.missing(keys) == tuple(keys[:3])
    taken_in(parts, "[a = 4]")
    assert len(parts) == 2


def test_a_part_takes_room_for_every_attribute_however_short() -> None:
    long = ParsedAdPart('[a = "' + "x" * 1000 + '"]')
    many = ParsedAdPart("[" + "; ".join(f"a{n}=1" for n in range(140)) + "]")
    assert many.size > 5 * long.size


def test_an_expression_is_as_long_as_policies_are_or_its_ad_is_at_fault() -> None:
    assert ParsedAdPart("[a = b + " + " " * LONGEST_EXPRESSION + "1]").fault == ""
    assert "a is longer than" in ParsedAdPart("[a = 1; A = {b == " + "b == " * (LONGEST_EXPRESSION // 4) + "1}]").fault


def test_an_ad_is_as_large_as_a_part_or_at_fault() -> None:
    assert "at most" in ParsedAdPart('[a = "' + "x" * MAX_PART_BYTES + '"]').fault


NAMES = st.sampled_from(["LoadAvg", "loadavg", "State", "true", "Parent", "a b", "x1", "is"])
LITERALS = st.one_of(
    st.integers(-5, 10**20).map(str),
    st.floats(0, 1e6).map(str),
    st.sampled_from(["010", "0.10", "1.", "true", "TRUE", "x1", '"a; b"', '"a\\"b"', '"é"', '""', "1 + 1", "{1}", ""]),
    st.text("aZ9 ;=[]", max_size=4).map(lambda text: f'"{text}"'),
)


@given(st.lists(st.tuples(NAMES, LITERALS), max_size=4), st.sampled_from(["; ", ";", " ; "]))
def test_plain_literals_are_read_as_the_classad_library_reads_them(said: list[tuple[str, str]], between: str) -> None:
    text = "[" + between.join(f"{name} = {literal}" for name, literal in said) + "]"
    part = ParsedAdPart(text)
    try:
        expected = {fold(name): value for name, value in Ad.read(text).plain().items()}
    except InvalidClassAdError:
        assert part.fault
    else:
        assert part.attributes is not None
        # repr tells 1, 1.0 and True apart; the library has an order of its own
        assert repr(sorted(part.attributes.items())) == repr(sorted(expected.items()))
