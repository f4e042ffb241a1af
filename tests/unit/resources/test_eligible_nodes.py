"""The part of the tree that a selection leaves."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidRequirementsError
from pilotage.resources.selection import NodeType, get_eligible_nodes
from support.trees import a_tree

TREE = a_tree(
    sites={
        "CERN": {
            "Country": "CH",
            "ces": {
                "ce02": {"OS": "el9", "queues": {"long": {"Memory": 4000}, "short": {"Memory": 2000}}},
                "ce01": {"OS": "el7", "queues": {"long": {"Memory": 8000, "OS": "el9"}}},
            },
        },
        "FNAL": {"VOs": ["cms"], "ces": {"ce": {"OS": "el9", "queues": {"q": {"Memory": 4000}}}}},
        "Empty": {"ces": {"ce": {"queues": {}}}},
        "Off": {"Enabled": False, "ces": {"ce": {"queues": {"q": {}}}}},
    }
)


def test_the_tree_goes_from_the_sites_down_in_its_own_order_and_nothing_is_empty() -> None:
    assert get_eligible_nodes(TREE, "cms") == {
        "CERN": {"ce02": ["long", "short"], "ce01": ["long"]},
        "FNAL": {"ce": ["q"]},
    }


def test_a_vo_sees_nothing_of_what_is_closed_to_it() -> None:
    assert list(get_eligible_nodes(TREE, "atlas")) == ["CERN"]
    assert list(get_eligible_nodes(TREE, None)) == ["CERN", "FNAL"]


def test_queues_are_selected_by_what_holds_for_them() -> None:
    selected = get_eligible_nodes(TREE, "atlas", queue_select={"Memory": 4000, "OS": "el9"})
    assert selected == {"CERN": {"ce02": ["long"], "ce01": ["long"]}}


def test_computing_elements_are_selected_by_what_holds_for_them() -> None:
    selected = get_eligible_nodes(TREE, "cms", ce_select={"OS": "el9", "Country": "ch"})
    assert selected == {"CERN": {"ce02": ["long", "short"]}}


def test_the_level_cuts_the_tree() -> None:
    big = {"Memory": 4000}
    assert get_eligible_nodes(TREE, "cms", NodeType.CE, queue_select=big) == {
        "CERN": ["ce02", "ce01"],
        "FNAL": ["ce"],
    }
    assert get_eligible_nodes(TREE, "cms", NodeType.SITE, queue_select=big) == ["CERN", "FNAL"]


def test_what_nothing_fits_is_an_empty_tree() -> None:
    assert get_eligible_nodes(TREE, "cms", queue_select={"Memory": 10**9}) == {}


def test_a_selection_without_meaning_is_an_error() -> None:
    with pytest.raises(InvalidRequirementsError, match="Memory"):
        get_eligible_nodes(TREE, "cms", ce_select={"Memory": []})


def test_the_selections_of_the_caller_are_left_as_they_are() -> None:
    ce_select, queue_select = {"OS": ["el9"]}, {"Memory": 1}
    get_eligible_nodes(TREE, "cms", ce_select=ce_select, queue_select=queue_select)
    assert (ce_select, queue_select) == ({"OS": ["el9"]}, {"Memory": 1})
