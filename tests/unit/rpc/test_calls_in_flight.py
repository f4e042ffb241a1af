"""Calls that are refused because too many are under way: when to come again, and what the log tells."""

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

MOST = 4


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_call(*, is_over: bool = False) -> Call[object]:
    """Return a call of which no more is known than whether it is over."""
    call: Call[object] = Call.__new__(Call)
    call.is_over = is_over
    return call


def a_full_house(time: Time) -> CallsInFlight:
    in_flight = CallsInFlight(MOST, time)
    for _ in range(MOST):
        in_flight.add(a_call())
    return in_flight


def delay_s(refusal: grpc.Status | None) -> float:
    """Return when one is asked to come again."""
    assert refusal is not None
    metadata = dict(refusal.trailing_metadata or ())
    content = metadata["grpc-status-details-bin"]
    assert isinstance(content, bytes)
    retry = RetryInfo()
    assert any(detail.Unpack(retry) for detail in Status.FromString(content).details)
    seconds: float = retry.retry_delay.ToMilliseconds() / 1000
    return seconds


def test_the_more_are_refused_the_later_they_are_asked_to_come_again_within_bounds() -> None:
    in_flight = a_full_house(Time())
    delays = [delay_s(in_flight.overload_status()) for _ in range(1000)]

    assert delays == sorted(delays)
    assert delays[0] < 2 * SHORTEST_DELAY_S
    assert delays[-1] == LONGEST_DELAY_S


def test_after_a_quiet_time_they_are_asked_to_come_again_soon() -> None:
    time = Time()
    in_flight = a_full_house(time)
    for _ in range(1000):
        in_flight.overload_status()
    time.now_s += 3600

    assert delay_s(in_flight.overload_status()) < 2 * SHORTEST_DELAY_S


def test_the_log_tells_of_refusals_every_now_and_then_not_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_module, "log", structlog.get_logger())  # one that has not chosen its processors yet
    time = Time()
    in_flight = a_full_house(time)

    with capture_logs() as logs:
        for _ in range(100):
            in_flight.overload_status()
        time.now_s += LOG_EVERY_S
        in_flight.overload_status()

    assert [line["refused_lately"] for line in logs] == [1, 1]


def test_a_call_that_ended_while_it_was_being_counted_takes_no_room() -> None:
    in_flight = CallsInFlight(1, Time())
    in_flight.add(a_call(is_over=True))
    assert in_flight.overload_status() is None
    in_flight.add(a_call())
    assert in_flight.overload_status() is not None
