"""Names of turns: who serves the same takes turns."""

from __future__ import annotations

from pilotage_agents.core.turn_names import turn_name


def test_neither_order_nor_letter_case_of_what_is_served_counts() -> None:
    assert turn_name("director", ["CERN/*/*", "Lyon/*/*"]) == turn_name("director", ["lyon/*/*", "cern/*/*"])


def test_copies_that_serve_different_things_have_different_turns() -> None:
    names = {
        turn_name("director"),
        turn_name("director", ["A/*/*"]),
        turn_name("director", ["B/*/*"]),
        turn_name("director", ["B/*/*"], ["slurm"]),
        turn_name("drains", ["A/*/*"]),
    }
    assert len(names) == 5


def test_a_name_is_short_and_tells_long_lists_apart_all_the_same() -> None:
    many, more = (turn_name("director", [f"SITE{n}/*/*" for n in range(count)]) for count in (100, 101))
    assert many != more
    assert len(many) < 500
