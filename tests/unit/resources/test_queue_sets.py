"""Sets of queues as bits: they are sets like any, in the order that they belong to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.pool_mapping import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resources.tree import QueueId

QUEUES = tuple(QueueId("CERN", "ce01", name) for name in "abcde")
ORDER = QueueOrder(QUEUES)
some_queues = st.frozensets(st.sampled_from(QUEUES))


@given(some_queues)
def test_a_set_of_queues_equals_the_plain_set_and_hashes_alike(queues: frozenset[QueueId]) -> None:
    made = ORDER.queue_set(queues)
    assert made == queues
    assert queues == made
    assert hash(made) == hash(ORDER.queue_set(list(queues)))
    assert (len(made), bool(made)) == (len(queues), bool(queues))


@given(some_queues, st.sampled_from(QUEUES))
def test_membership_is_that_of_the_plain_set(queues: frozenset[QueueId], queue: QueueId) -> None:
    assert (queue in ORDER.queue_set(queues)) == (queue in queues)


@given(some_queues)
def test_queues_are_listed_in_their_order(queues: frozenset[QueueId]) -> None:
    assert list(ORDER.queue_set(queues)) == sorted(queues)


@given(some_queues, some_queues)
def test_sets_of_two_orders_compare_by_what_they_hold(one: frozenset[QueueId], other: frozenset[QueueId]) -> None:
    backwards = QueueOrder(reversed(QUEUES))
    assert (ORDER.queue_set(one) == backwards.queue_set(other)) == (one == other)
    assert ORDER.queue_set(one) - backwards.queue_set(other) == one - other


@given(some_queues, some_queues)
def test_what_an_order_does_not_know_is_not_in_its_sets(known: frozenset[QueueId], queues: frozenset[QueueId]) -> None:
    assert QueueOrder(known).queue_set(queues) == known & queues


def test_an_order_that_is_extended_keeps_its_numbers() -> None:
    short = QueueOrder(QUEUES[1:3])
    longer = short.extended(QUEUES)
    assert longer.queues == (*QUEUES[1:3], QUEUES[0], *QUEUES[3:])
    assert QueueSet(longer, short.queue_set(QUEUES).bits) == set(QUEUES[1:3])


def test_no_queues_is_an_empty_set() -> None:
    assert (len(NO_QUEUES), list(NO_QUEUES), QUEUES[0] in NO_QUEUES) == (0, [], False)
