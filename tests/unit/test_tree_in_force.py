"""The tree in force: what it knows, and each VO's view of it."""

from __future__ import annotations

from pilotage.resource_tree import QueueId
from pilotage_server.core.tree_in_force import NO_TREE, TreeInForce
from support.trees import THE_QUEUE, a_tree_of_one_queue


def a_tree() -> TreeInForce:
    for_vo = {"ForVO": {"CMS": {"Memory": 9000}}}
    return TreeInForce(3, a_tree_of_one_queue({"Memory": 2000, "VOs": ["cms", "atlas"], **for_vo}))


def memory(tree: TreeInForce, vo: str | None) -> object:
    queue = tree.effective(THE_QUEUE, vo)
    value = queue.get("Memory") if queue else None
    return value.value if value else None


def test_without_a_tree_nothing_is_known() -> None:
    assert (NO_TREE.version, NO_TREE.queues) == (0, ())
    assert not NO_TREE.knows(THE_QUEUE)
    assert NO_TREE.effective(THE_QUEUE, "cms") is None


def test_a_queue_of_another_name_is_not_known() -> None:
    tree = a_tree()
    assert tree.knows(THE_QUEUE)
    assert tree.effective(QueueId(THE_QUEUE.site, THE_QUEUE.ce, "other"), None) is None


def test_each_vo_sees_its_own_values_in_any_letter_case_of_its_name() -> None:
    tree = a_tree()
    assert [memory(tree, vo) for vo in ("cms", "CMS", "atlas", None)] == [9000, 9000, 2000, 2000]


def test_a_view_is_made_once() -> None:
    tree = a_tree()
    assert tree.as_seen_by("cms") is tree.as_seen_by("CMS")


def test_vos_without_end_are_served_and_not_remembered_without_end() -> None:
    tree = a_tree()
    first = tree.as_seen_by("vo0")
    assert {memory(tree, f"vo{number}") for number in range(200)} == {2000}
    assert tree.as_seen_by("vo199") is tree.as_seen_by("vo199")
    assert tree.as_seen_by("vo0") is not first


def test_a_queue_that_does_not_admit_a_vo_is_in_its_view_and_says_so() -> None:
    queue = a_tree().as_seen_by("lhcb")[THE_QUEUE]
    assert not queue.admits()
