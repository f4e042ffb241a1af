"""Whose events have been heard of: all that can be seen and are not one's own are of others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.jobs.record import FeedCursor

transactions = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=20)


def test_nothing_is_unheard_at_the_position_where_it_began() -> None:
    assert FeedCursor(7).unread_ranges(7) == []


def test_events_around_ones_own_are_of_others() -> None:
    others = FeedCursor(10)
    others.add_own(13, 2)
    assert others.unread_ranges(20) == [(11, 12), (15, 20)]


def test_own_events_that_cannot_be_seen_yet_are_kept_for_later() -> None:
    others = FeedCursor(0)
    others.add_own(5, 2)
    assert others.unread_ranges(4) == [(1, 4)]
    others.advance(4)
    assert others.unread_ranges(7) == [(7, 7)]


def test_events_of_a_transaction_that_seemed_to_fail_are_heard_of_if_they_are_there_after_all() -> None:
    others = FeedCursor(0)
    others.add_own(1, 3)
    others.remove_own(1)
    assert others.unread_ranges(3) == [(1, 3)]


def test_what_was_heard_is_not_heard_again() -> None:
    others = FeedCursor(0)
    others.advance(9)
    assert others.unread_ranges(9) == []
    assert others.unread_ranges(10) == [(10, 10)]


@given(transactions, st.sets(st.integers(0, 19)))
def test_every_event_of_others_is_heard_once_and_none_of_ones_own(
    done: list[tuple[bool, int]], looks: set[int]
) -> None:
    others = FeedCursor(0)
    position = 0
    foreign: list[int] = []
    heard: list[int] = []
    for number, (is_own, count) in enumerate(done):
        if is_own:
            others.add_own(position + 1, count)
        else:
            foreign += range(position + 1, position + count + 1)
        position += count
        if number in looks or number == len(done) - 1:
            heard += [each for first, last in others.unread_ranges(position) for each in range(first, last + 1)]
            others.advance(position)
    assert heard == foreign
