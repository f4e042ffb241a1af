"""The nodes of the tree that satisfy a selection."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidRequirementsError
from pilotage.resources.node_types import NodeType
from pilotage.resources.selection import get_eligible_nodes
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


def test_returns_enabled_nodes_in_tree_order_without_empty_ones() -> None:
    assert get_eligible_nodes(TREE, "cms") == {
        "CERN": {"ce02": ["long", "short"], "ce01": ["long"]},
        "FNAL": {"ce": ["q"]},
    }


def test_vo_sees_only_nodes_it_may_use() -> None:
    assert list(get_eligible_nodes(TREE, "atlas")) == ["CERN"]
    assert list(get_eligible_nodes(TREE, None)) == ["CERN", "FNAL"]


def test_selects_queues_by_effective_values() -> None:
    selected = get_eligible_nodes(TREE, "atlas", queue_select={"Memory": 4000, "OS": "el9"})
    assert selected == {"CERN": {"ce02": ["long"], "ce01": ["long"]}}


def test_selects_ces_by_effective_values() -> None:
    selected = get_eligible_nodes(TREE, "cms", ce_select={"OS": "el9", "Country": "ch"})
    assert selected == {"CERN": {"ce02": ["long", "short"]}}


def test_node_type_limits_depth() -> None:
    big = {"Memory": 4000}
    assert get_eligible_nodes(TREE, "cms", NodeType.CE, queue_select=big) == {
        "CERN": ["ce02", "ce01"],
        "FNAL": ["ce"],
    }
    assert get_eligible_nodes(TREE, "cms", NodeType.SITE, queue_select=big) == ["CERN", "FNAL"]


def test_selection_without_match_is_empty() -> None:
    assert get_eligible_nodes(TREE, "cms", queue_select={"Memory": 10**9}) == {}


def test_rejects_empty_list_in_selection() -> None:
    with pytest.raises(InvalidRequirementsError, match="Memory"):
        get_eligible_nodes(TREE, "cms", ce_select={"Memory": []})


def test_does_not_modify_selections_of_caller() -> None:
    ce_select, queue_select = {"OS": ["el9"]}, {"Memory": 1}
    get_eligible_nodes(TREE, "cms", ce_select=ce_select, queue_select=queue_select)
    assert (ce_select, queue_select) == ({"OS": ["el9"]}, {"Memory": 1})
