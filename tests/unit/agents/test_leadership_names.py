"""Names of turns: who serves the same takes turns."""

from __future__ import annotations

from pilotage_agents.runtime.leadership import leadership_name


def test_neither_order_nor_letter_case_of_what_is_served_counts() -> None:
    assert leadership_name("director", ["CERN/*/*", "Lyon/*/*"]) == leadership_name(
        "director", ["lyon/*/*", "cern/*/*"]
    )


def test_copies_that_serve_different_things_have_different_turns() -> None:
    names = {
        leadership_name("director"),
        leadership_name("director", ["A/*/*"]),
        leadership_name("director", ["B/*/*"]),
        leadership_name("director", ["B/*/*"], ["slurm"]),
        leadership_name("drains", ["A/*/*"]),
    }
    assert len(names) == 5


def test_a_name_is_short_and_tells_long_lists_apart_all_the_same() -> None:
    many, more = (leadership_name("director", [f"SITE{n}/*/*" for n in range(count)]) for count in (100, 101))
    assert many != more
    assert len(many) < 500
