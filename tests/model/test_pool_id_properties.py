"""What must hold for the ids of all submit pools."""

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
    """Return the id of the pool of a section."""
    return pool_id(read_requirements(section, "cms"))


def as_list(value: object) -> list[Scalar]:
    """Return a value as the list of its elements."""
    return list(value) if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]


@given(sections, st.randoms(use_true_random=False))
def test_order_repetition_and_letter_case_do_not_matter(section: Section, random: object) -> None:
    def cased(text: object) -> object:
        return random.choice((text.upper(), text.lower())) if isinstance(text, str) else text  # type: ignore[attr-defined]

    names = list(section)
    random.shuffle(names)  # type: ignore[attr-defined]
    other: Section = {}
    for name in names:
        elements = [cased(element) for element in as_list(section[name])] * 2
        random.shuffle(elements)  # type: ignore[attr-defined]
        other[str(cased(name))] = elements
    assert id_of(other) == id_of(section)


@given(sections)
def test_writing_a_section_down_and_reading_it_again_does_not_matter(section: Section) -> None:
    typed = read_requirements(section, "cms").section
    assert id_of(json.loads(json.dumps(typed))) == id_of(section)


@given(st.integers(0, 2**53), st.sampled_from(("Memory", "Disk")))
def test_a_number_its_float_and_its_text_with_unit_do_not_matter(mib: int, name: str) -> None:
    spellings: list[object] = [mib, float(mib), f"{mib} MB", f"{mib}", [mib, mib + 1], f"{mib * 1024} KB"]
    assert len({id_of({name: spelling}) for spelling in spellings}) == 1


@given(sections, sections)
def test_sections_with_different_meaning_have_different_ids(one: Section, other: Section) -> None:
    first, second = (read_requirements(section, "cms") for section in (one, other))
    same = {item.name: item.normal for item in first.items} == {item.name: item.normal for item in second.items}
    assert (pool_id(first) == pool_id(second)) == same


@given(st.integers(0, 10**6) | st.floats(0, 10**6), st.integers(0, 10**6) | st.floats(0, 10**6))
def test_capacities_share_a_pool_just_when_they_are_equal(one: float, other: float) -> None:
    assert (id_of({"Memory": one}) == id_of({"Memory": other})) == (one == other)


@given(st.frozensets(st.text(min_size=1).filter(str.strip).map(str.casefold), min_size=1))
def test_tags_share_a_pool_just_when_the_sets_are_equal(tags: frozenset[str]) -> None:
    fewer = sorted(tags)[1:]
    assert id_of({"Tags": sorted(tags)}) == id_of({"Tags": sorted(tags, reverse=True)})
    assert not fewer or id_of({"Tags": fewer}) != id_of({"Tags": sorted(tags)})


def test_the_id_is_the_same_in_another_process_with_another_hash_seed() -> None:
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
