"""The node that a ban names, found in the tree."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.resources.tree import QueueId
from pilotage_server.core.resources.bans import TreeNode, find_node

QUEUES = (QueueId("CERN", "ce01", "long"), QueueId("cern", "ce09", "short"), QueueId("FNAL", "ce01", "far"))


def test_a_site_in_another_letter_case_is_found_unless_two_sites_differ_by_it() -> None:
    assert find_node(QUEUES, TreeNode("fnal")) == TreeNode("FNAL")
    assert find_node(QUEUES, TreeNode("cern")) == TreeNode("cern")
    assert find_node(QUEUES, TreeNode("CERN")) == TreeNode("CERN")


def test_names_are_looked_for_below_the_level_above_only() -> None:
    assert find_node(QUEUES, TreeNode("FNAL", "CE01", "FAR")) == TreeNode("FNAL", "ce01", "far")
    with pytest.raises(InvalidInputError, match="FNAL/ce01 has no queue 'long'"):
        find_node(QUEUES, TreeNode("FNAL", "ce01", "long"))


def test_a_name_that_is_near_to_none_gets_no_hint() -> None:
    with pytest.raises(InvalidInputError, match=r"no site 'zzzzzz'$"):
        find_node(QUEUES, TreeNode("zzzzzz"))


def test_in_an_empty_tree_nothing_can_be_banned() -> None:
    with pytest.raises(InvalidInputError, match="the tree has no site"):
        find_node((), TreeNode("CERN"))
