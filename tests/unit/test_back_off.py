"""Calls that an overloaded server refused are made again: when, how often, and what is said in the end."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.back_off import LONGEST_SPREAD_S, MOST_TRIES, BackOff
from pilotage.errors import OverloadedError

REFUSED = OverloadedError("the server is overloaded", 0.5)
LONG_S = 1e6


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pauses(dice: float, timeout_s: float = LONG_S) -> list[float]:
    """Return the pauses of a call that is refused until it is given up."""
    time = Time()
    back_off = BackOff(timeout_s, time, lambda: dice)
    found: list[float] = []
    with suppress(OverloadedError):
        while True:
            found.append(back_off.pause_s(REFUSED))
            time.now_s += found[-1]
    return found


@given(st.floats(0, 1))
def test_no_pause_is_shorter_than_told_nor_much_longer(dice: float) -> None:
    told_s = REFUSED.retry_after_s

    assert all(told_s <= pause <= told_s + LONGEST_SPREAD_S for pause in pauses(dice))


def test_chance_spreads_the_pauses_wider_from_try_to_try() -> None:
    spread = [longest - shortest for longest, shortest in zip(pauses(1.0), pauses(0.0), strict=True)]

    assert spread == sorted(spread)
    assert spread[0] == 2 * REFUSED.retry_after_s
    assert len(spread) == MOST_TRIES - 1


def test_a_call_is_not_tried_past_its_deadline() -> None:
    assert sum(pauses(1.0, timeout_s=5.0)) < 5.0


def test_the_time_for_the_next_try_is_what_is_left() -> None:
    time = Time()
    back_off = BackOff(10.0, time, lambda: 0.0)
    time.now_s += 4.0
    assert back_off.left_s == 6.0
    time.now_s += 10.0
    assert back_off.left_s == 0.0


def test_who_gives_up_says_how_often_it_was_refused() -> None:
    back_off = BackOff(LONG_S, Time(), lambda: 0.0)
    for _ in range(MOST_TRIES - 1):
        back_off.pause_s(REFUSED)

    with pytest.raises(OverloadedError, match=f"the server is overloaded; it refused this one {MOST_TRIES} times"):
        back_off.pause_s(REFUSED)
