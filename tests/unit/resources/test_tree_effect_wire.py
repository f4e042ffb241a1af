"""What a tree changes, told in a message that stays small however much it is."""

from __future__ import annotations

from pilotage.resources.pool_mapping import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resources.tree import QueueId
from pilotage_server.core.queueing.tree_plan import PoolChange, TreeEffect
from pilotage_server.rpc.resources import MAX_CHANGES, MAX_QUEUES_NAMED, tree_effect_to_wire

ORDER = QueueOrder(QueueId("CERN", "ce01", f"q{number:04}") for number in range(4000))
ALL = QueueSet(ORDER, (1 << 4000) - 1)


def test_small_changes_are_told_whole_and_sorted() -> None:
    two = ORDER.queue_set(reversed(ORDER.queues[:2]))
    answer = tree_effect_to_wire(TreeEffect(2, changes=(PoolChange("p", two, NO_QUEUES),)))
    (change,) = answer.changes
    assert [queue.queue for queue in change.gained] == ["q0000", "q0001"]
    assert (change.gained_count, change.lost_count, answer.pools_changed) == (2, 0, 1)


def test_of_large_changes_the_first_queues_are_named_and_all_are_counted() -> None:
    changes = (PoolChange("p", ALL, NO_QUEUES), PoolChange("q", ALL, ALL), PoolChange("r", NO_QUEUES, ALL))
    answer = tree_effect_to_wire(TreeEffect(2, changes=changes))
    named = [(len(change.gained), len(change.lost)) for change in answer.changes]
    assert named == [(4000, 0), (MAX_QUEUES_NAMED - 4000, 0), (0, 0)]
    assert [(change.gained_count, change.lost_count) for change in answer.changes] == [
        (4000, 0),
        (4000, 4000),
        (0, 4000),
    ]


def test_pools_beyond_those_listed_are_counted() -> None:
    changes = tuple(PoolChange(str(number), ALL, NO_QUEUES) for number in range(MAX_CHANGES + 7))
    answer = tree_effect_to_wire(TreeEffect(2, changes=changes))
    assert (len(answer.changes), answer.pools_changed) == (MAX_CHANGES, MAX_CHANGES + 7)
