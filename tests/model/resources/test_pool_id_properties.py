"""Properties of the ids of submit pools."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import Scalar
from pilotage.resources.requirements import pool_id, read_requirements
from support.trees import sections

Section = dict[str, object]


def id_of(section: Section) -> str:
    """Return the id of the pool of this section."""
    return pool_id(read_requirements(section, "cms"))


def as_list(value: object) -> list[Scalar]:
    """Return a value as the list of its elements."""
    return list(value) if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]


@given(sections, st.randoms(use_true_random=False))
def test_id_ignores_order_repetition_and_letter_case(section: Section, random: object) -> None:
    def random_case(text: object) -> object:
        return random.choice((text.upper(), text.lower())) if isinstance(text, str) else text  # type: ignore[attr-defined]

    names = list(section)
    random.shuffle(names)  # type: ignore[attr-defined]
    other: Section = {}
    for name in names:
        elements = [random_case(element) for element in as_list(section[name])] * 2
        random.shuffle(elements)  # type: ignore[attr-defined]
        other[str(random_case(name))] = elements
    assert id_of(other) == id_of(section)


@given(sections)
def test_id_survives_a_json_round_trip(section: Section) -> None:
    typed = read_requirements(section, "cms").section
    assert id_of(json.loads(json.dumps(typed))) == id_of(section)


@given(st.integers(0, 2**53), st.sampled_from(("Memory", "Disk")))
def test_id_ignores_the_spelling_of_amounts(mib: int, name: str) -> None:
    spellings: list[object] = [mib, float(mib), f"{mib} MB", f"{mib}", [mib, mib + 1], f"{mib * 1024} KB"]
    assert len({id_of({name: spelling}) for spelling in spellings}) == 1


@given(sections, sections)
def test_ids_are_equal_exactly_for_equal_sections(one: Section, other: Section) -> None:
    first, second = (read_requirements(section, "cms") for section in (one, other))
    same = {item.name: item.normal for item in first.items} == {item.name: item.normal for item in second.items}
    assert (pool_id(first) == pool_id(second)) == same


@given(st.integers(0, 10**6) | st.floats(0, 10**6), st.integers(0, 10**6) | st.floats(0, 10**6))
def test_only_equal_capacities_share_a_pool(one: float, other: float) -> None:
    assert (id_of({"Memory": one}) == id_of({"Memory": other})) == (one == other)


@given(st.frozensets(st.text(min_size=1).filter(str.strip).map(str.casefold), min_size=1))
def test_only_equal_tag_sets_share_a_pool(tags: frozenset[str]) -> None:
    fewer = sorted(tags)[1:]
    assert id_of({"Tags": sorted(tags)}) == id_of({"Tags": sorted(tags, reverse=True)})
    assert not fewer or id_of({"Tags": fewer}) != id_of({"Tags": sorted(tags)})


def test_id_does_not_depend_on_the_hash_seed() -> None:
    section = {"Tags": ["GPU", "arm", "fast"], "OS": ["el9", "el8"], "Memory": "4 GB", "Production": True}
    program = (
        "import json, sys; from pilotage.resources.requirements import pool_id, read_requirements;"
        "print(pool_id(read_requirements(json.loads(sys.argv[1]), 'cms')))"
    )
    ids = {
        subprocess.run(
            [sys.executable, "-c", program, json.dumps(section)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert ids == {id_of(section)}
