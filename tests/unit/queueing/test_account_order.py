"""The order of an account's task queues, and the first one of a subset, compared with a plain sort."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.queueing.account_order import AccountOrder, QueuePosition
from pilotage_server.core.queueing.bitsets import bit_set


@given(st.integers(1, 3000), st.integers(0, 2**32), st.sampled_from([0.001, 0.02, 0.5]))
def test_first_of_subset_has_least_position(count: int, seed: int, fraction: float) -> None:
    draw = Random(seed)
    order, positions = AccountOrder(), dict[int, QueuePosition]()
    for step in range(2 * count):
        bit = step if step < count else draw.randrange(count)
        old = positions.pop(bit, None)
        if old is None or draw.random() < 0.8:
            positions[bit] = (draw.randrange(-3, 3), draw.randrange(10**6), bit, bit)
        order.replace(old, positions.get(bit))
        if step % 500 == 0:
            subset = {bit for bit in range(count) if draw.random() < fraction}
            expected = min((position for bit, position in positions.items() if bit in subset), default=None)
            assert order.first_among(bit_set(subset)) == expected
            order.check()
    assert order.positions() == sorted(positions.values())


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_first_of_same_subset_is_correct_after_each_change(count: int, seed: int) -> None:
    draw = Random(seed)
    order, positions = AccountOrder(), dict[int, QueuePosition]()
    subset = {bit for bit in range(count) if draw.random() < 0.3}
    for step in range(3 * count):
        bit = step if step < count else draw.randrange(count)
        old = positions.pop(bit, None)
        if old is None or draw.random() < 0.8:
            job = draw.randrange(10**6) if old is None or draw.random() < 0.3 else old[1] + 1
            positions[bit] = (0, job, bit, bit)
        order.replace(old, positions.get(bit))
        expected = min((position for bit, position in positions.items() if bit in subset), default=None)
        assert order.first_among(bit_set(subset)) == expected
