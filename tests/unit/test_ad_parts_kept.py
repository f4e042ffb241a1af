"""Parts of slots' ads are kept by their keys, as many as there is room for."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classad_evaluation import Ad
from pilotage.classads import Expression, InvalidClassAdError
from pilotage.errors import InvalidInputError
from pilotage.folding import fold
from pilotage_server.core.ad_parts import LARGEST_PART, LONGEST_EXPRESSION, AdPart, AdParts


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def taken_in(parts: AdParts, text: str) -> str:
    """Take a part in and return its key."""
    parts.take_in(key_of(text), text)
    return key_of(text)


def test_a_part_is_read_once_and_its_names_are_folded() -> None:
    parts = AdParts()
    key = taken_in(parts, '[Start = time() > 5; LoadAvg = 0.5; Name = "a"]')
    assert parts.part(key).attributes == {"start": Expression("MyCurrentTime > 5"), "loadavg": 0.5, "name": "a"}
    assert parts.part(key).fault == ""


@pytest.mark.parametrize("text", ["", "Start = True", "[Start = ", "[Start = 1; = 2]", "[a = /* ]"])
def test_a_part_that_cannot_be_read_is_kept_with_the_reason(text: str) -> None:
    parts = AdParts()
    assert parts.part(taken_in(parts, text)).fault


def test_a_key_that_is_not_that_of_the_text_is_refused() -> None:
    parts = AdParts()
    with pytest.raises(InvalidInputError, match="SHA-256"):
        parts.take_in(key_of("[a = 1]"), "[a = 2]")
    assert parts.missing([key_of("[a = 1]")]) == (key_of("[a = 1]"),)


def test_a_part_that_is_too_large_is_refused() -> None:
    text = '[a = "' + "x" * LARGEST_PART + '"]'
    with pytest.raises(InvalidInputError, match="at most"):
        AdParts().take_in(key_of(text), text)


def test_the_longest_unused_parts_are_forgotten_first() -> None:
    parts = AdParts(most=2)
    first, second = taken_in(parts, "[a = 1]"), taken_in(parts, "[a = 2]")
    parts.part(first)
    taken_in(parts, "[a = 3]")
    assert parts.missing([first, second]) == (second,)


def test_parts_are_forgotten_for_want_of_room_as_well() -> None:
    parts = AdParts(most_bytes=2 * AdPart("[a = 1]").size)
    keys = [taken_in(parts, f"[a = {number}]") for number in range(5)]
    assert parts.missing(keys) == tuple(keys[:3])
    taken_in(parts, "[a = 4]")
    assert len(parts) == 2


def test_a_part_takes_room_for_every_attribute_however_short() -> None:
    long, many = AdPart('[a = "' + "x" * 1000 + '"]'), AdPart("[" + "; ".join(f"a{n}=1" for n in range(140)) + "]")
    assert many.size > 5 * long.size


def test_an_expression_is_as_long_as_policies_are_or_its_ad_is_at_fault() -> None:
    assert AdPart("[a = b + " + " " * LONGEST_EXPRESSION + "1]").fault == ""
    assert "a is longer than" in AdPart("[a = 1; A = {b == " + "b == " * (LONGEST_EXPRESSION // 4) + "1}]").fault


def test_an_ad_is_as_large_as_a_part_or_at_fault() -> None:
    assert "at most" in AdPart('[a = "' + "x" * LARGEST_PART + '"]').fault


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
    part = AdPart(text)
    try:
        expected = {fold(name): value for name, value in Ad.read(text).plain().items()}
    except InvalidClassAdError:
        assert part.fault
    else:
        assert part.attributes is not None
        # repr tells 1, 1.0 and True apart; the library has an order of its own
        assert repr(sorted(part.attributes.items())) == repr(sorted(expected.items()))
