"""Back-off, and retries of calls after overload and while no server is reachable."""

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
from pilotage_client.retry import RetryBudget

REFUSED = OverloadedError("the server is overloaded", 0.5)
LONG_S = 1e6


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(0, 0), (1, 1), (2, 2), (3, 4), (12, 2048), (13, 3600), (10_000, 3600)]
)
def test_backoff_doubles_up_to_longest_pause(failures: int, pause_s: float) -> None:
    assert backoff(failures, 1.0, 3600.0) == pause_s
    assert backoff(failures, timedelta(seconds=1), timedelta(hours=1)) == timedelta(seconds=pause_s)


@pytest.mark.parametrize(("random", "pause_s"), [(0.0, 5.0), (0.5, 7.5), (1.0, 10.0)])
def test_jitter_removes_up_to_half_of_pause(random: float, pause_s: float) -> None:
    assert jittered(10.0, random) == pause_s


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pauses(random: float, timeout_s: float = LONG_S) -> list[float]:
    """Return the pauses between tries of a call that always fails with overload."""
    clock = Clock()
    retry = OverloadRetry(timeout_s, clock, lambda: random)
    found: list[float] = []
    with suppress(OverloadedError):
        while True:
            found.append(retry.pause_s(REFUSED))
            clock.now_s += found[-1]
    return found


@given(st.floats(0, 1))
def test_overload_pause_is_retry_after_plus_bounded_spread(random: float) -> None:
    least_s = REFUSED.retry_after_s

    assert all(least_s <= pause <= least_s + LONGEST_SPREAD_S for pause in pauses(random))


def test_spread_of_overload_pauses_grows() -> None:
    spread = [longest - shortest for longest, shortest in zip(pauses(1.0), pauses(0.0), strict=True)]

    assert spread == sorted(spread)
    assert spread[0] == 2 * REFUSED.retry_after_s
    assert len(spread) == MAX_TRIES - 1


def test_call_is_not_retried_past_its_deadline() -> None:
    assert sum(pauses(1.0, timeout_s=5.0)) < 5.0


def test_remaining_time_shrinks_to_zero() -> None:
    clock = Clock()
    retry = OverloadRetry(10.0, clock, lambda: 0.0)
    clock.now_s += 4.0
    assert retry.remaining_s == 6.0
    clock.now_s += 10.0
    assert retry.remaining_s == 0.0


def test_error_after_last_try_has_number_of_tries() -> None:
    retry = OverloadRetry(LONG_S, Clock(), lambda: 0.0)
    for _ in range(MAX_TRIES - 1):
        retry.pause_s(REFUSED)

    with pytest.raises(OverloadedError, match=f"the server is overloaded; it refused this one {MAX_TRIES} times"):
        retry.pause_s(REFUSED)


class Outage:
    """A server that is unreachable until a virtual time, and a client that retries."""

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

    def retry_for(self, timeout_s: float) -> RetryBudget:
        def sleep(seconds: float) -> None:
            self.now_s += seconds

        return RetryBudget(timeout_s, self.lines.append, clock=lambda: self.now_s, sleep=sleep)


def test_client_survives_outage_and_reports_it_once() -> None:
    outage = Outage(back_s=60)
    assert outage.retry_for(300)(outage.call) == "answer"
    assert outage.lines == ["no server answers; trying again for up to 300 s"]
    assert 60 <= outage.now_s <= 65


def test_pauses_of_client_grow_to_bound() -> None:
    outage = Outage(back_s=60)
    outage.retry_for(300)(outage.call)
    found = [later - earlier for earlier, later in zip(outage.calls, outage.calls[1:], strict=False)]
    assert found[:6] == [0.25, 0.5, 1, 2, 4, 5]
    assert set(found[6:]) == {5}


@pytest.mark.parametrize("timeout_s", [0, 1, 100])
def test_client_gives_up_exactly_at_timeout(timeout_s: float) -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.retry_for(timeout_s)(outage.call)
    assert outage.now_s == outage.calls[-1] == timeout_s
    assert len(outage.lines) == (1 if timeout_s else 0)


def test_deadline_of_call_limits_retries() -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.retry_for(300)(outage.call, until_s=12)
    assert outage.now_s == 12
    assert "up to 12 s" in outage.lines[0]


def test_second_outage_gets_full_timeout() -> None:
    outage = Outage(back_s=8)
    retry = outage.retry_for(10)
    retry(outage.call)
    outage.back_s = outage.now_s + 8
    assert retry(outage.call) == "answer"
    assert len(outage.lines) == 2


@pytest.mark.parametrize("error", [NotFoundError("job", "7"), WorldError("the disk is full", transient=False)])
def test_permanent_error_is_not_retried(error: Exception) -> None:
    outage = Outage()
    with pytest.raises(type(error)):
        outage.retry_for(300)(raiser(error))
    assert (outage.now_s, outage.lines) == (0, [])


def raiser(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
