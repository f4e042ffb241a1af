"""The tree of a real grid: its recorded effective values, and eligibility against an independent evaluator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from pilotage.resources.eligibility import Eligible, eligibility
from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.pool_mapping import map_pools
from pilotage.resources.requirements import Requirements, pool_id, read_requirements
from pilotage.resources.tree import ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping

Parameters = dict[str, object]
Place = tuple[str, str, str]
POOLS = 300


@cache
def tree_of(folder: Path) -> ResourceTree:
    """Return the real tree."""
    text = (folder / "data/resources/tree.json").read_text()
    return tree_from_mapping(read_tree_text(text, "tree.json"))[0]


@cache
def oracle_of(folder: Path) -> dict[Place, Parameters]:
    """Return the recorded parameters of each queue."""
    lines = (folder / "data/resources/resolved.jsonl").read_text().splitlines()
    return {(line["site"], line["ce"], line["queue"]): line["params"] for line in map(json.loads, lines)}


def fits(requirements: Parameters, vo: str, offered: Parameters) -> bool:
    """Return whether a queue of the oracle is eligible, for the types that occur in the tree."""
    admitted = offered.get("VOs") or [vo]
    if offered.get("Enabled") is False or vo.lower() not in [str(one).lower() for one in _list(admitted)]:
        return False
    return all(name in offered and _one_fits(name, required, offered[name]) for name, required in requirements.items())


def _one_fits(name: str, required: object, offered: object) -> bool:
    if isinstance(required, bool):
        return required is offered
    if isinstance(required, int | float):
        return isinstance(offered, int | float) and not isinstance(offered, bool) and offered >= required
    required_texts, offered_texts = ({str(one).lower() for one in _list(each)} for each in (required, offered))
    return required_texts <= offered_texts if name == "Tags" else bool(required_texts & offered_texts)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def random_sections(folder: Path) -> Iterator[tuple[Parameters, str]]:
    """Yield sections with values of the tree, each with a VO that may use a part of the tree."""
    random = Random(1)
    offers = list(oracle_of(folder).values())
    while True:
        offered = random.choice(offers)
        names = random.sample(sorted(offered), random.randint(1, 4))
        text_for_number = {name for name in ("CPUs", "Disk") if isinstance(offered.get(name), str)}
        section = {name: offered[name] for name in names if name not in text_for_number and offered[name] != []}
        if section:
            yield section, random.choice([str(vo) for vo in _list(offered["VOs"])])


@pytest.fixture(scope="module")
def pools(shared_data: Path) -> list[tuple[Parameters, Requirements]]:
    """Return random sections, each with the requirements that it is read as."""
    sections = random_sections(shared_data)
    found = [(section, read_requirements(section, vo)) for section, vo in (next(sections) for _ in range(POOLS))]
    assert len({requirements.vo for _, requirements in found}) > 20
    return found


def test_effective_values_equal_the_oracle_in_list_order(shared_data: Path) -> None:
    queues = effective_queues(tree_of(shared_data), None)
    resolved = {(queue.id.site, queue.id.ce, queue.id.queue): queue.parameters() for queue in queues}
    oracle = oracle_of(shared_data)
    assert len(queues) == len(oracle) == 683
    # As JSON, so that True is not 1 and 8 is not 8.0.
    assert {place: json.dumps(found, sort_keys=True) for place, found in resolved.items()} == {
        place: json.dumps(expected, sort_keys=True) for place, expected in oracle.items()
    }
    assert sum(not queue.is_enabled() for queue in queues) == 123


def test_computing_elements_in_two_sites_are_distinct(shared_data: Path) -> None:
    ids = list(tree_of(shared_data).queue_ids())
    sites: dict[str, set[str]] = {}
    for queue in ids:
        sites.setdefault(queue.ce, set()).add(queue.site)
    assert sum(len(found) > 1 for found in sites.values()) == 11
    assert len(set(ids)) == 683


def test_mapping_agrees_with_the_oracle_on_every_queue(
    shared_data: Path, pools: list[tuple[Parameters, Requirements]]
) -> None:
    tree = tree_of(shared_data)
    mapping = map_pools({pool_id(pool): pool for _, pool in pools}, tree)
    for section, requirements in pools:
        expected = {
            place for place, offered in oracle_of(shared_data).items() if fits(section, requirements.vo, offered)
        }
        found = mapping[pool_id(requirements)]
        assert {(queue.site, queue.ce, queue.queue) for queue in found} == expected


def test_mapping_agrees_with_eligibility_on_every_queue(
    shared_data: Path, pools: list[tuple[Parameters, Requirements]]
) -> None:
    tree = tree_of(shared_data)
    mapping = map_pools({pool_id(pool): pool for _, pool in pools}, tree)
    assert sum(bool(found) for found in mapping.values()) > POOLS / 2
    for _, requirements in pools[: POOLS // 3]:
        queues = effective_queues(tree, requirements.vo)
        eligible = tuple(queue.id for queue in queues if eligibility(requirements, queue) == Eligible())
        assert tuple(mapping[pool_id(requirements)]) == eligible


def test_real_tree_is_equal_when_read_as_yaml(shared_data: Path) -> None:
    text = (shared_data / "data/resources/tree.json").read_text()
    assert tree_from_mapping(read_tree_text(text, "yaml"))[0] == tree_of(shared_data)
