"""Sets of queues as bit sets: they behave like ordinary sets, in the order of their `QueueOrder`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.pool_mapping import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resources.tree import QueueId

QUEUES = tuple(QueueId("CERN", "ce01", name) for name in "abcde")
ORDER = QueueOrder(QUEUES)
some_queues = st.frozensets(st.sampled_from(QUEUES))


@given(some_queues)
def test_equals_frozenset_and_has_equal_hash(queues: frozenset[QueueId]) -> None:
    queue_set = ORDER.queue_set(queues)
    assert queue_set == queues
    assert queues == queue_set
    assert hash(queue_set) == hash(ORDER.queue_set(list(queues)))
    assert (len(queue_set), bool(queue_set)) == (len(queues), bool(queues))


@given(some_queues, st.sampled_from(QUEUES))
def test_membership_agrees_with_frozenset(queues: frozenset[QueueId], queue: QueueId) -> None:
    assert (queue in ORDER.queue_set(queues)) == (queue in queues)


@given(some_queues)
def test_iterates_in_queue_order(queues: frozenset[QueueId]) -> None:
    assert list(ORDER.queue_set(queues)) == sorted(queues)


@given(some_queues, some_queues)
def test_sets_of_two_orders_compare_by_elements(one: frozenset[QueueId], other: frozenset[QueueId]) -> None:
    backwards = QueueOrder(reversed(QUEUES))
    assert (ORDER.queue_set(one) == backwards.queue_set(other)) == (one == other)
    assert ORDER.queue_set(one) - backwards.queue_set(other) == one - other


@given(some_queues, some_queues)
def test_unknown_queues_are_left_out(known: frozenset[QueueId], queues: frozenset[QueueId]) -> None:
    assert QueueOrder(known).queue_set(queues) == known & queues


def test_extended_order_keeps_bits() -> None:
    short = QueueOrder(QUEUES[1:3])
    longer = short.extended(QUEUES)
    assert longer.queues == (*QUEUES[1:3], QUEUES[0], *QUEUES[3:])
    assert QueueSet(longer, short.queue_set(QUEUES).bits) == set(QUEUES[1:3])


def test_no_queues_is_empty() -> None:
    assert (len(NO_QUEUES), list(NO_QUEUES), QUEUES[0] in NO_QUEUES) == (0, [], False)
