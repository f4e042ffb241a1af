"""Which names of an array's files become one when its macros are filled in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_macros import render_text
from pilotage_server.core.names_in_arrays import Clash, clashes

pieces = st.sampled_from(
    ["$(Process)", "$(procid)", "$(Cluster)", "$(clusterid)", "0", "1", "11", "a", "/", "$(x)", "."]
)
some_names = st.lists(st.lists(pieces, min_size=1, max_size=4).map("".join), max_size=6, unique=True)


@given(some_names, st.integers(1, 130))
def test_those_clash_that_are_one_in_some_job_whatever_the_cluster_is(names: list[str], count: int) -> None:
    found = clashes(names, count)
    unheard_of = 98_765_432_123
    expected = set()
    for process in range(count):
        rendered = [render_text(name, unheard_of, process) for name in names]
        expected |= {name for name, text in zip(names, rendered, strict=True) if rendered.count(text) > 1}
    assert bool(found) == bool(expected)
    assert {clash.name for clash in found} <= expected
    for name, other, place in found:
        assert place is not None
        assert name != other
        assert render_text(name, unheard_of, place) == render_text(other, unheard_of, place)
    assert len({clash.name for clash in found}) == len(found)


@pytest.mark.parametrize(
    "names",
    [
        [f"part{number}_$(Process).dat" for number in range(5000)],
        [f"part_$(Process)_{number}.dat" for number in range(5000)],
        [f"data{number}" for number in range(10_000)],
    ],
)
def test_many_names_that_cannot_meet_are_not_too_many_for_the_largest_array(names: list[str]) -> None:
    assert clashes(names, 1_000_000) == ()


def test_names_that_meet_only_in_a_late_job_are_found() -> None:
    assert clashes(["$(Process)1", "1$(Process)"], 10) == (Clash("1$(Process)", "$(Process)1", 1),)
    assert clashes(["x$(Process)_9", "x9_$(Process)", "y"], 9) == ()
    assert clashes(["x$(Process)_9", "x9_$(Process)", "y"], 10) == (Clash("x9_$(Process)", "x$(Process)_9", 9),)


def test_names_that_are_too_many_to_be_filled_in_are_said_to_be_so() -> None:
    names = [f"$(Process){'1' * ones}" for ones in range(3)]
    assert clashes(names, 700_000) == (Clash(names[2], names[0], None),)
