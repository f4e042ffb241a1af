"""Pauses after failures, and failed calls that are tried again: after overload, and while a server is away."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.backoff import backoff, jittered
from pilotage.errors import NotFoundError, OverloadedError, ServerUnreachableError, WorldError
from pilotage.rpc.channel import LONGEST_SPREAD_S, MAX_TRIES, OverloadRetry
from pilotage_client.retry import Patience

REFUSED = OverloadedError("the server is overloaded", 0.5)
LONG_S = 1e6


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(0, 0), (1, 1), (2, 2), (3, 4), (12, 2048), (13, 3600), (10_000, 3600)]
)
def test_pauses_double_up_to_the_longest(failures: int, pause_s: float) -> None:
    assert backoff(failures, 1.0, 3600.0) == pause_s
    assert backoff(failures, timedelta(seconds=1), timedelta(hours=1)) == timedelta(seconds=pause_s)


@pytest.mark.parametrize(("dice", "pause_s"), [(0.0, 5.0), (0.5, 7.5), (1.0, 10.0)])
def test_jitter_takes_off_up_to_half_of_a_pause(dice: float, pause_s: float) -> None:
    assert jittered(10.0, dice) == pause_s


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pauses(dice: float, timeout_s: float = LONG_S) -> list[float]:
    """Return the pauses of a call that is refused until it is given up."""
    time = Time()
    retry = OverloadRetry(timeout_s, time, lambda: dice)
    found: list[float] = []
    with suppress(OverloadedError):
        while True:
            found.append(retry.pause_s(REFUSED))
            time.now_s += found[-1]
    return found


@given(st.floats(0, 1))
def test_overload_pause_has_the_servers_length_plus_a_bounded_spread(dice: float) -> None:
    least_s = REFUSED.retry_after_s

    assert all(least_s <= pause <= least_s + LONGEST_SPREAD_S for pause in pauses(dice))


def test_overload_pauses_spread_wider_from_try_to_try() -> None:
    spread = [longest - shortest for longest, shortest in zip(pauses(1.0), pauses(0.0), strict=True)]

    assert spread == sorted(spread)
    assert spread[0] == 2 * REFUSED.retry_after_s
    assert len(spread) == MAX_TRIES - 1


def test_call_is_not_tried_past_its_deadline() -> None:
    assert sum(pauses(1.0, timeout_s=5.0)) < 5.0


def test_next_try_may_take_what_is_left() -> None:
    time = Time()
    retry = OverloadRetry(10.0, time, lambda: 0.0)
    time.now_s += 4.0
    assert retry.remaining_s == 6.0
    time.now_s += 10.0
    assert retry.remaining_s == 0.0


def test_error_after_the_last_try_counts_the_refusals() -> None:
    retry = OverloadRetry(LONG_S, Time(), lambda: 0.0)
    for _ in range(MAX_TRIES - 1):
        retry.pause_s(REFUSED)

    with pytest.raises(OverloadedError, match=f"the server is overloaded; it refused this one {MAX_TRIES} times"):
        retry.pause_s(REFUSED)


class Outage:
    """A server that is away until some virtual second, and a client that waits for it."""

    def __init__(self, back_s: float = math.inf) -> None:
        self.back_s = back_s
        self.now_s = 0.0
        self.calls: list[float] = []
        self.lines: list[str] = []

    def call(self) -> str:
        self.calls.append(self.now_s)
        if self.now_s < self.back_s:
            raise ServerUnreachableError("no server answers")
        return "answer"

    def patience(self, patience_s: float) -> Patience:
        def sleep(seconds: float) -> None:
            self.now_s += seconds

        return Patience(patience_s, self.lines.append, clock=lambda: self.now_s, sleep=sleep)


def test_client_outlasts_an_outage_and_reports_it_once() -> None:
    outage = Outage(back_s=60)
    assert outage.patience(300)(outage.call) == "answer"
    assert outage.lines == ["no server answers; trying again for up to 300 s"]
    assert 60 <= outage.now_s <= 65


def test_client_pauses_grow_to_a_bound() -> None:
    outage = Outage(back_s=60)
    outage.patience(300)(outage.call)
    found = [later - earlier for earlier, later in zip(outage.calls, outage.calls[1:], strict=False)]
    assert found[:6] == [0.25, 0.5, 1, 2, 4, 5]
    assert set(found[6:]) == {5}


@pytest.mark.parametrize("patience_s", [0, 1, 100])
def test_client_gives_up_exactly_at_the_end(patience_s: float) -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.patience(patience_s)(outage.call)
    assert outage.now_s == outage.calls[-1] == patience_s
    assert len(outage.lines) == (1 if patience_s else 0)


def test_end_of_a_call_precedes_the_end_of_retries() -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.patience(300)(outage.call, until_s=12)
    assert outage.now_s == 12
    assert "up to 12 s" in outage.lines[0]


def test_second_outage_gets_the_whole_time_again() -> None:
    outage = Outage(back_s=8)
    patiently = outage.patience(10)
    patiently(outage.call)
    outage.back_s = outage.now_s + 8
    assert patiently(outage.call) == "answer"
    assert len(outage.lines) == 2


@pytest.mark.parametrize("error", [NotFoundError("job", "7"), WorldError("the disk is full", transient=False)])
def test_permanent_error_is_raised_at_once(error: Exception) -> None:
    outage = Outage()
    with pytest.raises(type(error)):
        outage.patience(300)(raiser(error))
    assert (outage.now_s, outage.lines) == (0, [])


def raiser(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
