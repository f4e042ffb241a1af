"""Admission: calls beyond a limit or a quota are refused with a retry delay, and logged at intervals."""

from __future__ import annotations

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from structlog.testing import capture_logs

from pilotage.resources.tree import QueueId
from pilotage.telemetry import WARN_EVERY_S
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.rpc.framework import admission
from pilotage_server.rpc.framework.admission import (
    LONGEST_DELAY_S,
    SHORTEST_DELAY_S,
    Admission,
    CallLimits,
    CallQuota,
    CallsInFlight,
)
from pilotage_server.rpc.framework.calls import Call

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
    in_flight = CallsInFlight(CallLimits(LIMIT), clock)
    for _ in range(LIMIT):
        in_flight.calls_of(user("alice")).open(a_call())
    return in_flight


def user(owner: str, vo: str = "sky") -> Identity:
    return Identity(owner, vo, (), frozenset({Role.USER}))


def pilot(stamp: str) -> Identity:
    credential = PilotCredential(stamp, QueueId("SITE", "ce", "queue"))
    return Identity(f"pilot:{stamp}", "", (), frozenset({Role.PILOT}), credential)


QUOTAS = CallLimits(100, owner=CallQuota(2, 3), vo=CallQuota(4, 5), pilot=CallQuota(1, 1))


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


def test_refusals_are_logged_at_intervals() -> None:
    clock = FakeClock()
    in_flight = full_calls(clock)

    with capture_logs() as logs:
        for _ in range(100):
            in_flight.overload_status()
        clock.now_s += WARN_EVERY_S
        in_flight.overload_status()

    assert [line["unlogged"] for line in logs] == [0, 99]


def test_call_that_already_ended_is_not_counted() -> None:
    in_flight = CallsInFlight(CallLimits(1), FakeClock())
    in_flight.calls_of(user("alice")).add(a_call(is_over=True))
    assert in_flight.overload_status() is None
    in_flight.calls_of(user("alice")).add(a_call())
    assert in_flight.overload_status() is not None


def test_owner_beyond_its_quota_leaves_room_for_others() -> None:
    in_flight = CallsInFlight(QUOTAS, FakeClock())
    alice = in_flight.calls_of(user("alice"))
    for _ in range(2):
        alice.open(a_call())

    refusal = in_flight.calls_of(user("alice")).refusal()
    assert refusal is not None
    assert "alice of the VO sky has 2 calls under way" in str(refusal.details)
    assert in_flight.calls_of(user("bob")).refusal() is None
    assert in_flight.calls_of(user("alice", "sea")).refusal() is None


def test_waiting_calls_count_against_the_quota_of_open_calls() -> None:
    in_flight = CallsInFlight(QUOTAS, FakeClock())
    alice, calls = in_flight.calls_of(user("alice")), [a_call() for _ in range(3)]
    for call in calls:
        alice.open(call)
        alice.discard(call)

    refusal = alice.refusal()
    assert refusal is not None
    assert "3 open calls" in str(refusal.details)
    alice.close(calls[0])
    assert alice.refusal() is None


def test_vo_beyond_its_quota_leaves_room_for_other_vos() -> None:
    in_flight = CallsInFlight(QUOTAS, FakeClock())
    for number in range(4):
        in_flight.calls_of(user(f"user{number}")).open(a_call())

    assert in_flight.calls_of(user("another")).refusal() is not None
    assert in_flight.calls_of(user("another", "sea")).refusal() is None


def test_pilot_has_a_quota_of_its_own() -> None:
    in_flight = CallsInFlight(QUOTAS, FakeClock())
    in_flight.calls_of(pilot("p1")).open(a_call())

    assert in_flight.calls_of(pilot("p1")).refusal() is not None
    assert in_flight.calls_of(pilot("p2")).refusal() is None


def test_many_callers_without_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FEW_CALLERS", 3)
    in_flight = CallsInFlight(QUOTAS, FakeClock())
    in_flight.calls_of(user("alice", "sea")).open(a_call())
    for number in range(100):
        in_flight.calls_of(user(f"user{number}", f"vo{number}"))

    assert len(in_flight._callers) <= admission.FEW_CALLERS + 1
    for _ in range(2):
        in_flight.calls_of(user("alice", "sea")).open(a_call())
    assert in_flight.calls_of(user("alice", "sea")).refusal() is not None


@pytest.mark.parametrize(
    "method",
    [
        "MatcherService/ReportState",
        "MatcherService/RequestJobs",
        "PilotService/ReportGlideins",
        "AgentService/TakeTurn",
        "RouteService/ReportCopies",
    ],
)
def test_users_do_not_exhaust_the_calls_of_pilots_and_agents(method: str) -> None:
    calls = Admission(CallLimits(1), FakeClock())
    calls.calls_to("/pilotage.v1.JobService/SubmitJobs").calls_of(user("alice")).open(a_call())

    assert calls.calls_to("/pilotage.v1.JobService/WatchEvents").overload_status() is not None
    assert calls.calls_to(f"/pilotage.v1.{method}").overload_status() is None
