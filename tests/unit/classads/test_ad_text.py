"""Ads as text: written for the ClassAd library, and as the lines of the ad files that payloads read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.text import ad_lines, ad_text

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).map(lambda name: f"x_{name}")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCALARS = (
    st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4).map(tuple)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_ad_text_round_trips(attributes: dict[str, AdValue]) -> None:
    by_folded_name = {name.lower(): value for name, value in attributes.items()}
    text = ad_text(by_folded_name)
    assert "\n" not in text
    assert Ad.read(text).plain() == by_folded_name


def test_expressions_are_kept_and_evaluated_inside_the_ad() -> None:
    ad = Ad.read(ad_text({"a": 2, "b": Expression("a * 3"), "c": Expression("TARGET.x // why")}))
    assert ad.value("b") == 6
    assert ad.value("c") is NoValue.UNDEFINED
    assert ad.value("no_such") is NoValue.UNDEFINED


def test_time_function_uses_the_time_of_the_ad() -> None:
    ad = Ad.read("[age = time() - EnteredCurrentState; EnteredCurrentState = 40; MyCurrentTime = 100]")
    assert ad.value("age") == 60


@pytest.mark.parametrize("text", ["", "a = 1", "[a = 1] [b = 2]", "[a = 1]; b", "(a)", "{1}", "[a = ]", "[a = 1"])
def test_rejects_text_that_is_not_one_ad(text: str) -> None:
    with pytest.raises(InvalidClassAdError):
        Ad.read(text)


def test_read_and_copied_ads_are_independent() -> None:
    first, second = Ad.read("[a = 1]"), Ad.read("[a = 1]")
    first.set("a", 2)
    assert second.value("a") == 1
    copied = first.copy()
    copied.discard("a")
    assert first.value("a") == 2


def test_each_attribute_is_one_line_in_order() -> None:
    text = '[Owner = "ann"; RequestCpus = 2; Big = true; Files = {"a", "b"}; Inner = [x = 1; y = "z"]]'
    assert ad_lines(text).splitlines() == [
        'Owner = "ann"',
        "RequestCpus = 2",
        "Big = true",
        'Files = {"a", "b"}',
        'Inner = [x = 1; y = "z"]',
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (r'"C:\\temp"', r'A = "C:\temp"'),
        (r'"say \"yes\""', r'A = "say \"yes\""'),
        (r'"two\nlines"', r'A = "two\nlines"'),
        ('"x = 1; y"', 'A = "x = 1; y"'),
        (r'regexp("\\d+", Name)', r'A = regexp("\d+", Name)'),
        ("TARGET.Memory >= 100\n && TARGET.HasX", "A = TARGET.Memory >= 100   && TARGET.HasX"),
    ],
)
def test_strings_keep_their_meaning_in_old_syntax(value: str, line: str) -> None:
    assert ad_lines(f"[A = {value}]").rstrip("\n").split() == line.split()


@pytest.mark.parametrize("text", ["[]", "[ ]", "[;]"])
def test_empty_ad_has_no_lines(text: str) -> None:
    assert ad_lines(text) == ""


def evaluated_lines(*attributes: str) -> dict[str, str]:
    """Return the evaluated lines of a machine's ad by name."""
    text = "[" + "; ".join(attributes) + "]"
    return dict(line.split(" = ", 1) for line in ad_lines(text, evaluated=True).splitlines())


def test_evaluates_attributes_that_need_no_job() -> None:
    lines = evaluated_lines(
        "SlotID = 9",
        "Can = SlotID == (8 + 1)",
        "Twice = 2 * slotid",
        'Who = strcat("slot", SlotID)',
        "Id2 = SlotID",
        "Id3 = Id2",
    )
    assert lines == {"SlotID": "9", "Can": "true", "Twice": "18", "Who": '"slot9"', "Id2": "9", "Id3": "9"}


def test_keeps_expressions_that_depend_on_the_job() -> None:
    lines = evaluated_lines(
        'Start = Fast && TARGET.Owner =?= "ann"',
        "IsOwner = Start =?= False",
        "Fast = true",
        "Rank = RequestCpus",
        'State9 = eval(strcat("Slot", 9, "_State"))',
        "Round = Trip",
        "Trip = Round",
    )
    assert lines == {
        "Start": 'Fast && TARGET.Owner =?= "ann"',
        "IsOwner": "Start =?= False",
        "Fast": "true",
        "Rank": "RequestCpus",
        "State9": 'eval(strcat("Slot", 9, "_State"))',
        "Round": "Trip",
        "Trip": "Round",
    }
