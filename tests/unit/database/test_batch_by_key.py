"""Items with the same key come one after the other, the others together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.containers import batch_by_key


def test_each_keys_first_items_make_the_first_round() -> None:
    assert batch_by_key(["a", "b", "a", "c", "a", "b"]) == [[0, 1, 3], [2, 5], [4]]


@given(st.lists(st.integers(0, 3)))
def test_rounds_have_every_item_once_and_keep_the_order_of_each_key(keys: list[int]) -> None:
    places = [place for round_ in batch_by_key(keys) for place in round_]
    assert sorted(places) == list(range(len(keys)))
    for key in set(keys):
        mine = [place for place in places if keys[place] == key]
        assert mine == sorted(mine)
    assert all(len({keys[place] for place in round_}) == len(round_) for round_ in batch_by_key(keys))
