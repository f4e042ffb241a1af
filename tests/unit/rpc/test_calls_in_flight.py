"""Overload: calls beyond the limit are refused with a retry delay, and logged at intervals."""

from __future__ import annotations

import grpc
import pytest
import structlog
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from structlog.testing import capture_logs

from pilotage_server.rpc.framework import dispatch as in_flight_module
from pilotage_server.rpc.framework.calls import Call
from pilotage_server.rpc.framework.dispatch import LOG_EVERY_S, LONGEST_DELAY_S, SHORTEST_DELAY_S, CallsInFlight

LIMIT = 4


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_call(*, is_over: bool = False) -> Call[object]:
    """Return a call that has only its `is_over`."""
    call: Call[object] = Call.__new__(Call)
    call.is_over = is_over
    return call


def full_calls(clock: FakeClock) -> CallsInFlight:
    in_flight = CallsInFlight(LIMIT, clock)
    for _ in range(LIMIT):
        in_flight.add(a_call())
    return in_flight


def delay_s(refusal: grpc.Status | None) -> float:
    """Return the retry delay of a refusal."""
    assert refusal is not None
    metadata = dict(refusal.trailing_metadata or ())
    content = metadata["grpc-status-details-bin"]
    assert isinstance(content, bytes)
    retry = RetryInfo()
    assert any(detail.Unpack(retry) for detail in Status.FromString(content).details)
    seconds: float = retry.retry_delay.ToMilliseconds() / 1000
    return seconds


def test_retry_delay_grows_with_refusals_up_to_a_bound() -> None:
    in_flight = full_calls(FakeClock())
    delays = [delay_s(in_flight.overload_status()) for _ in range(1000)]

    assert delays == sorted(delays)
    assert delays[0] < 2 * SHORTEST_DELAY_S
    assert delays[-1] == LONGEST_DELAY_S


def test_retry_delay_is_short_again_after_a_pause() -> None:
    clock = FakeClock()
    in_flight = full_calls(clock)
    for _ in range(1000):
        in_flight.overload_status()
    clock.now_s += 3600

    assert delay_s(in_flight.overload_status()) < 2 * SHORTEST_DELAY_S


def test_refusals_are_logged_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_module, "log", structlog.get_logger())  # a logger without cached processors
    clock = FakeClock()
    in_flight = full_calls(clock)

    with capture_logs() as logs:
        for _ in range(100):
            in_flight.overload_status()
        clock.now_s += LOG_EVERY_S
        in_flight.overload_status()

    assert [line["refused_lately"] for line in logs] == [1, 1]


def test_call_that_already_ended_is_not_counted() -> None:
    in_flight = CallsInFlight(1, FakeClock())
    in_flight.add(a_call(is_over=True))
    assert in_flight.overload_status() is None
    in_flight.add(a_call())
    assert in_flight.overload_status() is not None
