"""The active tree: its queues, and each VO's view of them."""

from __future__ import annotations

from pilotage.resources.tree import QueueId, ResourceTree
from pilotage_server.core.resources.tree import NO_TREE, ActiveTree
from support.trees import THE_QUEUE, one_queue_tree
from support.trees import a_tree as a_resource_tree


def a_tree() -> ActiveTree:
    for_vo = {"ForVO": {"CMS": {"Memory": 9000}}}
    return ActiveTree(3, one_queue_tree({"Memory": 2000, "VOs": ["cms", "atlas"], **for_vo}))


def two_queues(*names: str) -> ResourceTree:
    return a_resource_tree(sites={"CERN": {"ces": {"ce01": {"queues": {name: {} for name in names}}}}})


def memory(tree: ActiveTree, vo: str | None) -> object:
    queue = tree.effective(THE_QUEUE, vo)
    value = queue.get("Memory") if queue else None
    return value.value if value else None


def test_no_tree_has_no_queues() -> None:
    assert (NO_TREE.version, NO_TREE.queues) == (0, ())
    assert not NO_TREE.knows(THE_QUEUE)
    assert NO_TREE.effective(THE_QUEUE, "cms") is None


def test_knows_only_its_own_queues() -> None:
    tree = a_tree()
    assert tree.knows(THE_QUEUE)
    assert tree.effective(QueueId(THE_QUEUE.site, THE_QUEUE.ce, "other"), None) is None


def test_vo_sees_its_own_values_ignoring_case() -> None:
    tree = a_tree()
    assert [memory(tree, vo) for vo in ("cms", "CMS", "atlas", None)] == [9000, 9000, 2000, 2000]


def test_view_of_vo_is_cached() -> None:
    tree = a_tree()
    assert tree.view_for("cms") is tree.view_for("CMS")


def test_cache_of_views_is_bounded() -> None:
    tree = a_tree()
    first = tree.view_for("vo0")
    assert {len(tree.view_for(f"vo{number}")) for number in range(200)} == {1}
    assert tree.view_for("vo199") is tree.view_for("vo199")
    assert tree.view_for("vo0") is not first


def test_view_includes_queue_that_does_not_admit_vo() -> None:
    queue = a_tree().view_for("lhcb")[THE_QUEUE]
    assert not queue.admits()


def test_effective_queue_equals_queue_in_view() -> None:
    tree = a_tree()
    for vo in ("cms", "atlas", "lhcb", None):
        assert tree.effective(THE_QUEUE, vo) == tree.view_for(vo)[THE_QUEUE]


def test_successor_keeps_queue_numbers() -> None:
    first = ActiveTree(1, two_queues("a", "b"))
    second = first.successor(two_queues("c", "a"))
    assert (second.version, [queue.queue for queue in second.queues]) == (2, ["c", "a"])
    assert [queue.queue for queue in second.order.queues] == ["a", "b", "c"]
    assert second.order.extends(first.order)


def test_numbers_of_removed_queues_are_reclaimed() -> None:
    tree = ActiveTree(1, two_queues("a", "b"))
    for number in range(10):
        tree = tree.successor(two_queues(f"c{number}", f"d{number}"))
    assert len(tree.order.queues) <= 4
