"""Ads as text: written without the library, read back by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.text import ad_text

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).map(lambda name: f"x_{name}")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCALARS = (
    st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4).map(tuple)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_what_is_written_is_read_back(attributes: dict[str, AdValue]) -> None:
    by_folded_name = {name.lower(): value for name, value in attributes.items()}
    text = ad_text(by_folded_name)
    assert "\n" not in text
    assert Ad.read(text).plain() == by_folded_name


def test_expressions_are_kept_and_evaluated_inside_the_ad() -> None:
    ad = Ad.read(ad_text({"a": 2, "b": Expression("a * 3"), "c": Expression("TARGET.x // why")}))
    assert ad.value("b") == 6
    assert ad.value("c") is NoValue.UNDEFINED
    assert ad.value("no_such") is NoValue.UNDEFINED


def test_time_in_an_ad_is_what_the_ad_says_it_is() -> None:
    ad = Ad.read("[age = time() - EnteredCurrentState; EnteredCurrentState = 40; MyCurrentTime = 100]")
    assert ad.value("age") == 60


@pytest.mark.parametrize("text", ["", "a = 1", "[a = 1] [b = 2]", "[a = 1]; b", "(a)", "{1}", "[a = ]", "[a = 1"])
def test_what_is_not_one_ad_is_refused(text: str) -> None:
    with pytest.raises(InvalidClassAdError):
        Ad.read(text)


def test_an_ad_that_was_read_is_nobody_elses() -> None:
    first, second = Ad.read("[a = 1]"), Ad.read("[a = 1]")
    first.set("a", 2)
    assert second.value("a") == 1
    copied = first.copy()
    copied.discard("a")
    assert first.value("a") == 2
