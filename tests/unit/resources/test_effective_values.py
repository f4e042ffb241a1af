"""Effective values of a queue: inheritance, overlays, union, origin, access."""

from __future__ import annotations

import pytest

from pilotage.resources.inheritance import effective_queues
from pilotage.resources.tree import Level, Origin
from support.trees import THE_QUEUE, Section, a_queue, a_tree, effective_queue, one_queue_tree

UNITE_TAGS = {"Tags": {"type": "tags", "inherit": "unite"}}


def test_nearest_value_wins_and_has_its_origin() -> None:
    tree = one_queue_tree(
        {"A": "queue"},
        ce={"A": "ce", "B": "ce"},
        site={"A": "site", "B": "site", "C": "site"},
        defaults={"A": "d", "B": "d", "C": "d", "D": "d"},
    )
    queue = effective_queue(tree, THE_QUEUE, None)
    assert queue.parameters() == {"A": "queue", "B": "ce", "C": "site", "D": "d"}
    origins = [queue.values[name].origins for name in "abcd"]
    assert origins == [(Origin(level),) for level in (Level.QUEUE, Level.CE, Level.SITE, Level.DEFAULTS)]


def test_nearer_value_wins_ignoring_case_and_keeps_its_spelling() -> None:
    tree = one_queue_tree({"MEMORY": 1}, site={"Memory": 2})
    assert effective_queue(tree, THE_QUEUE, None).parameters() == {"MEMORY": 1}


def test_nearer_list_replaces_inherited_one_even_if_empty() -> None:
    tree = one_queue_tree({"Tags": [], "SEs": ["b", "a", "b"]}, site={"Tags": ["GPU"], "SEs": ["c"]})
    assert effective_queue(tree, THE_QUEUE, None).parameters() == {"Tags": (), "SEs": ("b", "a", "b")}


def test_vo_overlay_wins_at_each_level() -> None:
    tree = one_queue_tree(
        {"B": "queue"},
        ce={"ForVO": {"CMS": {"A": "ce for cms", "B": "ce for cms"}}},
        site={"A": "site", "ForVO": {"cms": {"C": "site for cms"}}},
        defaults={"ForVO": {"cms": {"D": "defaults for cms"}}},
    )
    cms = effective_queue(tree, THE_QUEUE, "Cms")
    assert cms.parameters() == {
        "A": "ce for cms",
        "B": "queue",
        "C": "site for cms",
        "D": "defaults for cms",
    }
    assert cms.values["a"].origins == (Origin(Level.CE, "CMS"),)
    for other in ("atlas", None):
        assert effective_queue(tree, THE_QUEUE, other).parameters() == {"A": "site", "B": "queue"}


def test_united_parameter_collects_values_along_path() -> None:
    tree = one_queue_tree(
        {"tags": ["GPU", "fast"]},
        ce={"Tags": []},
        site={"Tags": "gpu", "ForVO": {"cms": {"Tags": ["CMS"]}}},
        defaults={"Tags": ["std"]},
        parameters=UNITE_TAGS,
    )
    tags = effective_queue(tree, THE_QUEUE, "cms").values["tags"]
    assert tags.value == ("std", "gpu", "CMS", "fast")
    assert [str(origin) for origin in tags.origins] == ["defaults", "site", "site for VO cms", "queue"]


def test_united_parameter_of_one_level_stays_as_written() -> None:
    tree = one_queue_tree(site={"Tags": "GPU"}, parameters=UNITE_TAGS)
    assert effective_queue(tree, THE_QUEUE, None).parameters() == {"Tags": "GPU"}


@pytest.mark.parametrize(
    ("queue", "ce", "site", "vo", "admitted"),
    [
        ({}, {}, {}, "cms", True),
        ({}, {}, {"VOs": ["CMS"]}, "cms", True),
        ({}, {}, {"VOs": ["atlas"]}, "cms", False),
        ({"VOs": ["cms"]}, {}, {"VOs": ["atlas"]}, "cms", True),
        ({"VOs": ["cms"]}, {}, {"VOs": ["atlas"]}, "atlas", False),
        ({"VOs": []}, {"VOs": []}, {"VOs": ["atlas"]}, "cms", False),
        ({"VOs": []}, {}, {}, "cms", True),
        ({"VOs": "cms"}, {}, {}, "cms", True),
        ({"ForVO": {"cms": {"VOs": ["cms"]}}}, {}, {"VOs": ["atlas"]}, "cms", True),
        ({}, {}, {"VOs": ["atlas"]}, None, True),
    ],
)
def test_nearest_nonempty_access_list_decides(
    queue: Section, ce: Section, site: Section, vo: str | None, admitted: bool
) -> None:
    tree = one_queue_tree(queue, ce=ce, site=site)
    assert effective_queue(tree, THE_QUEUE, vo).admits() is admitted


def test_equal_ce_names_of_two_sites_are_two_ces() -> None:
    tree = a_tree(
        sites={
            "one": {"A": 1, "ces": {"ce": {"queues": {"q": {}}}}},
            "two": {"A": 2, "ces": {"ce": {"queues": {"q": {}}}}},
        }
    )
    assert [queue.values["a"].value for queue in effective_queues(tree, None)] == [1, 2]


@pytest.mark.parametrize(
    ("stated", "amount"), [(8, 8), ("auto", None), ("4 GB", 4096), ([8, "auto", 16], 16), ([], None), (True, None)]
)
def test_stated_amount_is_in_base_unit(stated: object, amount: object) -> None:
    assert a_queue(Memory=stated).stated_amount("memory") == amount


def test_declared_unit_applies_to_plain_amounts() -> None:
    tree = one_queue_tree({"Memory": 2}, parameters={"Memory": {"unit": "GB"}})
    assert effective_queue(tree, THE_QUEUE, None).stated_amount("Memory") == 2048
