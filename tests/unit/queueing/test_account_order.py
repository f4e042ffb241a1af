"""The order of an account's task queues, of any number, and the first of them among some."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.queueing.account_order import AccountOrder, QueuePosition
from pilotage_server.core.queueing.bitsets import bit_set


@given(st.integers(1, 3000), st.integers(0, 2**32), st.sampled_from([0.001, 0.02, 0.5]))
def test_the_first_among_some_is_the_least_of_their_turns(count: int, seed: int, part: float) -> None:
    draw = Random(seed)
    order, turns = AccountOrder(), dict[int, QueuePosition]()
    for step in range(2 * count):
        place = step if step < count else draw.randrange(count)
        before = turns.pop(place, None)
        if before is None or draw.random() < 0.8:
            turns[place] = (draw.randrange(-3, 3), draw.randrange(10**6), place, place)
        order.replace(before, turns.get(place))
        if step % 500 == 0:
            some = {place for place in range(count) if draw.random() < part}
            wanted = min((turn for place, turn in turns.items() if place in some), default=None)
            assert order.first_among(bit_set(some)) == wanted
            order.check()
    assert order.positions() == sorted(turns.values())


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_who_is_first_among_the_same_is_found_again_after_each_change(count: int, seed: int) -> None:
    draw = Random(seed)
    order, turns = AccountOrder(), dict[int, QueuePosition]()
    some = {place for place in range(count) if draw.random() < 0.3}
    for step in range(3 * count):
        place = step if step < count else draw.randrange(count)
        before = turns.pop(place, None)
        if before is None or draw.random() < 0.8:
            job = draw.randrange(10**6) if before is None or draw.random() < 0.3 else before[1] + 1
            turns[place] = (0, job, place, place)
        order.replace(before, turns.get(place))
        wanted = min((turn for place, turn in turns.items() if place in some), default=None)
        assert order.first_among(bit_set(some)) == wanted
