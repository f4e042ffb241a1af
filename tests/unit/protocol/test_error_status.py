"""Errors on the wire: the client raises the error of the server."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from pilotage.errors import (
    FeedPositionLostError,
    InvalidInputError,
    InvalidJobError,
    InvalidRequirementsError,
    InvalidTreeError,
    LeadershipLostError,
    LeaseLostError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    StateConflictError,
    UnauthenticatedError,
    Violation,
    WorldError,
)
from pilotage.rpc.status import MAX_VIOLATIONS, error_of, status_of
from pilotage_server.core.jobs.states import IllegalTransitionError, JobCause, JobState

ERRORS = [
    NotFoundError("job", "17"),
    PermissionDeniedError("needs the role admin"),
    UnauthenticatedError("no token"),
    StateConflictError("is DONE"),
    LeaseLostError(17, 3, "it ran out"),
    LeadershipLostError("drain controller"),
    FeedPositionLostError(900, 700, "it is lost"),
    WorldError("the disk is full", transient=False),
    WorldError("busy", transient=True),
    OverloadedError("it has 1000 calls under way", 1.5),
    InvalidInputError(Violation("a.b[2]", "is wrong"), Violation("", "all is wrong")),
    InvalidRequirementsError(Violation("Memory", "is empty")),
    InvalidTreeError(Violation("sites.X", "is wrong")),
    InvalidJobError(Violation("descriptions[0].executable", "is missing")),
]


class FailedCall(grpc.RpcError):
    """The part of a stub's error that the conversion reads."""

    def __init__(self, code: grpc.StatusCode, details: str = "", status: Status | None = None) -> None:
        super().__init__(details)
        self._code, self._details, self._status = code, details, status

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return () if self._status is None else (("grpc-status-details-bin", self._status.SerializeToString()),)


def round_trip(error: PilotageError) -> PilotageError:
    status = status_of(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return error_of(FailedCall(code, status.message, status))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__}: {error}")
def test_error_survives_round_trip(error: PilotageError) -> None:
    received = round_trip(error)

    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)


def test_server_error_subclass_is_received_as_base_class() -> None:
    error = IllegalTransitionError(JobState.DONE, JobCause.STARTED)

    received = round_trip(error)

    assert type(received) is StateConflictError
    assert str(received) == str(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidJobError(Violation("a", "b")), grpc.StatusCode.INVALID_ARGUMENT),
        (NotFoundError("job", "1"), grpc.StatusCode.NOT_FOUND),
        (PermissionDeniedError("no"), grpc.StatusCode.PERMISSION_DENIED),
        (UnauthenticatedError("who"), grpc.StatusCode.UNAUTHENTICATED),
        (StateConflictError("no"), grpc.StatusCode.FAILED_PRECONDITION),
        (LeaseLostError(1, 1, "x"), grpc.StatusCode.ABORTED),
        (LeadershipLostError("x"), grpc.StatusCode.ABORTED),
        (WorldError("x", transient=True), grpc.StatusCode.UNAVAILABLE),
        (OverloadedError("x", 1.0), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (WorldError("x", transient=False), grpc.StatusCode.INTERNAL),
    ],
)
def test_error_class_has_canonical_code(error: PilotageError, code: grpc.StatusCode) -> None:
    assert status_of(error).code == code.value[0]


def test_violations_become_field_violations() -> None:
    request = BadRequest()
    status = status_of(InvalidJobError(Violation("descriptions[1].count", "is 0")))

    assert any(detail.Unpack(request) for detail in status.details)
    assert request.field_violations[0].field == "descriptions[1].count"
    assert request.field_violations[0].description == "is 0"


def test_transient_error_has_retry_delay() -> None:
    retry = RetryInfo()
    status = status_of(WorldError("busy", transient=True))

    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.seconds > 0


@pytest.mark.parametrize("count", [MAX_VIOLATIONS + 1, 3 * MAX_VIOLATIONS])
def test_surplus_violations_are_counted(count: int) -> None:
    error = InvalidTreeError(*(Violation("x" * 5000, "y" * 5000) for _ in range(count)))

    received = round_trip(error)

    assert isinstance(received, InvalidTreeError)
    assert len(received.violations) <= MAX_VIOLATIONS + 1
    assert f"{count - len(received.violations) + 1} more" in received.violations[-1].why


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, ServerUnreachableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ServerUnreachableError),
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, InvalidInputError),
        (grpc.StatusCode.UNIMPLEMENTED, WorldError),
        (grpc.StatusCode.UNKNOWN, WorldError),
    ],
)
def test_foreign_status_becomes_pilotage_error(code: grpc.StatusCode, kind: type) -> None:
    assert type(error_of(FailedCall(code, "words"))) is kind


def test_message_to_an_ended_call_is_a_transient_error() -> None:
    error = error_of(FailedCall(grpc.StatusCode.INTERNAL, "Internal error from Core"))

    assert isinstance(error, ServerUnreachableError)
    assert error.transient


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:4711: Failed to connect to "
            "remote host: Connection refused",
            "no server answers at 10.0.0.1:4711: Connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:4711: Socket closed",
            "no server answers at [::1]:4711: Socket closed; it may demand TLS: name its authority",
        ),
        ("Socket closed", "the connection to the server broke (Socket closed)"),
        ("some other words", "some other words"),
    ],
)
def test_connection_failure_has_readable_message(details: str, message: str) -> None:
    assert str(error_of(FailedCall(grpc.StatusCode.UNAVAILABLE, details))) == message


def test_broken_details_do_not_hide_the_code() -> None:
    class Garbled(FailedCall):
        def trailing_metadata(self) -> Any:
            return (("grpc-status-details-bin", b"\xff\xff\xff"),)

    assert type(error_of(Garbled(grpc.StatusCode.UNAVAILABLE, "gone"))) is ServerUnreachableError


def test_missing_fields_of_another_release_do_not_hide_the_code() -> None:
    status = status_of(StateConflictError("late"))
    status.details[0].Pack(_lease_lost_without_fields())

    received = error_of(FailedCall(grpc.StatusCode.ABORTED, "late", status))

    assert type(received) is StateConflictError


def _lease_lost_without_fields() -> Any:
    from google.rpc.error_details_pb2 import ErrorInfo

    return ErrorInfo(reason="LEASE_LOST", domain="pilotage")
