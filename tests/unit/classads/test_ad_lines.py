"""The lines of the ad files that jobs find."""

from __future__ import annotations

import pytest

from pilotage.classads.text import ad_lines


def test_an_ad_is_a_line_for_each_attribute_in_its_order() -> None:
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
def test_texts_keep_their_meaning_in_the_old_syntax(value: str, line: str) -> None:
    assert ad_lines(f"[A = {value}]").rstrip("\n").split() == line.split()


@pytest.mark.parametrize("text", ["[]", "[ ]", "[;]"])
def test_an_ad_without_attributes_has_no_lines(text: str) -> None:
    assert ad_lines(text) == ""


def lines_of(*attributes: str) -> dict[str, str]:
    """Return the values of a machine's ad by name."""
    text = "[" + "; ".join(attributes) + "]"
    return dict(line.split(" = ", 1) for line in ad_lines(text, evaluated=True).splitlines())


def test_what_a_slot_publishes_is_a_value_that_a_script_can_read() -> None:
    said = lines_of(
        "SlotID = 9",
        "Can = SlotID == (8 + 1)",
        "Twice = 2 * slotid",
        'Who = strcat("slot", SlotID)',
        "Id2 = SlotID",
        "Id3 = Id2",
    )
    assert said == {"SlotID": "9", "Can": "true", "Twice": "18", "Who": '"slot9"', "Id2": "9", "Id3": "9"}


def test_what_asks_about_the_job_stays_as_it_is_said_also_where_it_does_by_way_of_others() -> None:
    said = lines_of(
        'Start = Fast && TARGET.Owner =?= "ann"',
        "IsOwner = Start =?= False",
        "Fast = true",
        "Rank = RequestCpus",
        'State9 = eval(strcat("Slot", 9, "_State"))',
        "Round = Trip",
        "Trip = Round",
    )
    assert said == {
        "Start": 'Fast && TARGET.Owner =?= "ann"',
        "IsOwner": "Start =?= False",
        "Fast": "true",
        "Rank": "RequestCpus",
        "State9": 'eval(strcat("Slot", 9, "_State"))',
        "Round": "Trip",
        "Trip": "Round",
    }
