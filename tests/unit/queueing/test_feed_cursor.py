"""The feed cursor: every visible event that the server did not write itself is read exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.jobs.record import FeedCursor

transactions = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=20)


def test_nothing_is_unread_at_start_position() -> None:
    assert FeedCursor(7).unread_ranges(7) == []


def test_own_events_are_left_out_of_unread_ranges() -> None:
    cursor = FeedCursor(10)
    cursor.add_own(13, 2)
    assert cursor.unread_ranges(20) == [(11, 12), (15, 20)]


def test_own_events_that_are_not_visible_yet_are_remembered() -> None:
    cursor = FeedCursor(0)
    cursor.add_own(5, 2)
    assert cursor.unread_ranges(4) == [(1, 4)]
    cursor.advance(4)
    assert cursor.unread_ranges(7) == [(7, 7)]


def test_events_of_own_failed_transaction_are_unread() -> None:
    cursor = FeedCursor(0)
    cursor.add_own(1, 3)
    cursor.remove_own(1)
    assert cursor.unread_ranges(3) == [(1, 3)]


def test_events_are_not_read_twice() -> None:
    cursor = FeedCursor(0)
    cursor.advance(9)
    assert cursor.unread_ranges(9) == []
    assert cursor.unread_ranges(10) == [(10, 10)]


@given(transactions, st.sets(st.integers(0, 19)))
def test_reads_each_foreign_event_once_and_no_own_event(written: list[tuple[bool, int]], reads_after: set[int]) -> None:
    cursor = FeedCursor(0)
    position = 0
    foreign: list[int] = []
    read: list[int] = []
    for number, (is_own, count) in enumerate(written):
        if is_own:
            cursor.add_own(position + 1, count)
        else:
            foreign += range(position + 1, position + count + 1)
        position += count
        if number in reads_after or number == len(written) - 1:
            read += [event for first, last in cursor.unread_ranges(position) for event in range(first, last + 1)]
            cursor.advance(position)
    assert read == foreign
