"""The order of versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.comparisons import version_key, version_text


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("9.9", "9.10"),
        ("2.0rc1", "2.0"),
        ("2.0rc1", "2.0rc2"),
        ("2.0a1", "2.0rc1"),
        ("1.0.2", "1.0.2k"),
        ("1.0.2k", "1.0.2.1"),
        ("v50r1", "v50r2"),
        ("v50r2", "v51r0"),
        ("1", "1.0.1"),
        ("el7", "el9"),
    ],
)
def test_newer_version_sorts_after_older_one(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(
    "spellings", [("1", "1.0", "1.0.0", "v1", "01"), ("2.0RC1", "2rc1", "2.0-rc.1"), ("EL9", "el9")]
)
def test_spellings_of_one_version_are_equal(spellings: tuple[str, ...]) -> None:
    assert len({version_key(spelling) for spelling in spellings}) == 1
    assert len({version_text(spelling) for spelling in spellings}) == 1


@given(st.text(alphabet="0123456789.abcrvk-_ ", max_size=12))
def test_canonical_text_of_version_has_equal_key(text: str) -> None:
    assert version_key(version_text(text)) == version_key(text)


@given(st.text(), st.text())
def test_any_two_texts_are_ordered(one: str, other: str) -> None:
    first, second = version_key(one), version_key(other)
    assert [first < second, first == second, first > second].count(True) == 1


def test_orders_versions_with_thousands_of_digits() -> None:
    assert version_key("1") < version_key("9" * 4000) < version_key("9" * 5000)
    assert version_text("0" + "9" * 5000) == "9" * 5000
