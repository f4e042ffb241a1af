"""Bans: the node of the tree that a ban names, the queues that it covers, and its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage.errors import InvalidInputError
from pilotage.resources.eligibility import Ban, active_bans
from pilotage.resources.tree import QueueId
from pilotage_server.core.resources.bans import TreeNode, find_node
from support.trees import THE_QUEUE

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
QUEUES = (QueueId("CERN", "ce01", "long"), QueueId("cern", "ce09", "short"), QueueId("FNAL", "ce01", "far"))


def test_finds_site_ignoring_case_unless_ambiguous() -> None:
    assert find_node(QUEUES, TreeNode("fnal")) == TreeNode("FNAL")
    assert find_node(QUEUES, TreeNode("cern")) == TreeNode("cern")
    assert find_node(QUEUES, TreeNode("CERN")) == TreeNode("CERN")


def test_finds_names_below_their_parent_only() -> None:
    assert find_node(QUEUES, TreeNode("FNAL", "CE01", "FAR")) == TreeNode("FNAL", "ce01", "far")
    with pytest.raises(InvalidInputError, match="FNAL/ce01 has no queue 'long'"):
        find_node(QUEUES, TreeNode("FNAL", "ce01", "long"))


def test_error_has_no_hint_without_similar_name() -> None:
    with pytest.raises(InvalidInputError, match=r"no site 'zzzzzz'$"):
        find_node(QUEUES, TreeNode("zzzzzz"))


def test_rejects_ban_in_empty_tree() -> None:
    with pytest.raises(InvalidInputError, match="the tree has no site"):
        find_node((), TreeNode("CERN"))


def test_ban_covers_nodes_below_it_ignoring_case() -> None:
    assert Ban("cern", None, None, "power cut").covers(THE_QUEUE)
    assert Ban("CERN", "CE01", "long", "broken").covers(THE_QUEUE)
    assert not Ban("CERN", "ce02", None, "broken").covers(THE_QUEUE)
    assert not Ban("CERN", "ce01", "short", "broken").covers(THE_QUEUE)
    assert not Ban("FNAL", None, None, "broken").covers(QueueId("CERN", "FNAL", "FNAL"))


def test_ban_expires() -> None:
    hour = timedelta(hours=1)
    ban = Ban("CERN", None, None, "power cut", until=NOON)
    assert active_bans([ban], THE_QUEUE, NOON - hour) == (ban,)
    assert active_bans([ban], THE_QUEUE, NOON) == ()
    permanent = Ban("CERN", None, None, "closed")
    assert active_bans([ban, permanent], THE_QUEUE, NOON + hour) == (permanent,)
