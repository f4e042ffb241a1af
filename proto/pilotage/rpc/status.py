"""Pilotage's errors ↔ google.rpc.Status, so that an error raised in a server is the same error in its client.

Unexpected errors never cross the wire; an incident's id is sent instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
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
    ProofTimeError,
    QuotaExceededError,
    ServerUnreachableError,
    StateConflictError,
    UnauthenticatedError,
    Violation,
    WorldError,
)

DOMAIN = "pilotage"
"""The domain of every ErrorInfo."""

MAX_VIOLATIONS = 500
"""Further faults are counted, not listed: a status is sent in one header."""

LONGEST_MESSAGE = 2000
"""Characters of a status's message and of each description in it."""

RETRY_AFTER_S = 1.0
"""The delay in RetryInfo after a transient failure."""

_DETAILS_KEY = "grpc-status-details-bin"
_NOT_CONNECTED = re.compile(r".*last error: \w+: ipv[46]:(?P<where>\S+): (?P<why>.+)", re.DOTALL)

_TLS_FAULTS: Mapping[str, str] = {
    "certificate has expired": "its certificate has expired; its operator must renew it",
    "certificate is not yet valid": "its certificate is not valid yet; compare its clock with that of this machine",
    "self signed certificate": "no authority that is trusted here has signed its certificate; name its authority",
    "unable to get local issuer certificate": (
        "no authority that is trusted here has signed its certificate; name its authority"
    ),
    "Hostname Verification Check failed": "its certificate is for another name; call it by a name of its certificate",
    "WRONG_VERSION_NUMBER": "it does not speak TLS, which only servers at loopback addresses may do without",
}
"""What gRPC reports of a failed handshake, and what it means for people."""

_BROKEN = re.compile(r"Stream removed|Socket closed|recvmsg:|GOAWAY|Cancelling all calls")


@dataclass(frozen=True, slots=True)
class _ErrorForm:
    """The form of a kind of error on the wire, and how it is decoded."""

    code: grpc.StatusCode
    reason: str
    decode: Callable[[str, Mapping[str, str]], PilotageError]


_FORMS: Mapping[type[PilotageError], _ErrorForm] = {
    NotFoundError: _ErrorForm(
        grpc.StatusCode.NOT_FOUND, "NOT_FOUND", lambda _, fields: NotFoundError(fields["kind"], fields["name"])
    ),
    ProofTimeError: _ErrorForm(
        grpc.StatusCode.UNAUTHENTICATED,
        "PROOF_TIME",
        lambda text, fields: ProofTimeError(text, int(fields["server_time_ms"])),
    ),
    UnauthenticatedError: _ErrorForm(
        grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", lambda text, _: UnauthenticatedError(text)
    ),
    PermissionDeniedError: _ErrorForm(
        grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", lambda text, _: PermissionDeniedError(text)
    ),
    LeaseLostError: _ErrorForm(
        grpc.StatusCode.ABORTED,
        "LEASE_LOST",
        lambda _, fields: LeaseLostError(int(fields["job_id"]), int(fields["attempt"]), fields["why"]),
    ),
    FeedPositionLostError: _ErrorForm(
        grpc.StatusCode.FAILED_PRECONDITION,
        "POSITION_LOST",
        lambda _, fields: FeedPositionLostError(int(fields["position"]), int(fields["resume_after"]), fields["why"]),
    ),
    LeadershipLostError: _ErrorForm(
        grpc.StatusCode.ABORTED, "TURN_LOST", lambda _, fields: LeadershipLostError(fields["agent"])
    ),
    QuotaExceededError: _ErrorForm(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", lambda text, _: QuotaExceededError(text)
    ),
    StateConflictError: _ErrorForm(
        grpc.StatusCode.FAILED_PRECONDITION, "STATE_CONFLICT", lambda text, _: StateConflictError(text)
    ),
    WorldError: _ErrorForm(grpc.StatusCode.INTERNAL, "WORLD_FAILED", lambda text, _: WorldError(text, transient=False)),
}
_BUSY = _ErrorForm(grpc.StatusCode.UNAVAILABLE, "WORLD_BUSY", lambda text, _: WorldError(text, transient=True))
_OVERLOADED, _OVERLOADED_CODE = "OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED
_INVALID: Mapping[type[InvalidInputError], str] = {
    InvalidInputError: "INVALID_INPUT",
    InvalidRequirementsError: "INVALID_REQUIREMENTS",
    InvalidTreeError: "INVALID_TREE",
    InvalidJobError: "INVALID_JOB",
}
_REQUEST_NOT_SENT = "Internal error from Core"
"""The text of grpc.aio for a message to a call that has ended; it hides how the call ended, such as by a refusal."""
_BY_REASON = {form.reason: form for form in (*_FORMS.values(), _BUSY)}
_INVALID_BY_REASON = {reason: kind for kind, reason in _INVALID.items()}


def reason_of(error: PilotageError) -> str:
    """Return the reason in the ErrorInfo of `error`, such as "NOT_FOUND"; of an unreachable server "UNREACHABLE"."""
    if isinstance(error, ServerUnreachableError):
        return "UNREACHABLE"
    info = ErrorInfo()
    status_of(error).details[0].Unpack(info)
    return str(info.reason)


def status_of(error: PilotageError) -> Status:
    """Return the status of `error`, with its fields in the details."""
    if isinstance(error, InvalidInputError):
        reason = next(_INVALID[kind] for kind in type(error).__mro__ if kind in _INVALID)
        return make_status(grpc.StatusCode.INVALID_ARGUMENT, str(error), _info(reason), _bad_request(error.violations))
    if isinstance(error, OverloadedError):
        return make_status(_OVERLOADED_CODE, str(error), _info(_OVERLOADED), _retry_info(error.retry_after_s))
    if isinstance(error, WorldError) and error.transient:
        return make_status(_BUSY.code, str(error), _info(_BUSY.reason), _retry_info(RETRY_AFTER_S))
    form = next((_FORMS[kind] for kind in type(error).__mro__ if kind in _FORMS), _FORMS[StateConflictError])
    return make_status(form.code, str(error), _info(form.reason, _fields_of(error)))


def make_status(code: grpc.StatusCode, text: str, *details: ErrorInfo | BadRequest | RetryInfo) -> Status:
    """Return a status with its details packed."""
    number: int = code.value[0]
    status = Status(code=number, message=_shortened(text))
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _retry_info(after_s: float) -> RetryInfo:
    delay = Duration()
    delay.FromNanoseconds(round(after_s * 1e9))
    return RetryInfo(retry_delay=delay)


def _info(reason: str, fields: Mapping[str, str] | None = None) -> ErrorInfo:
    return ErrorInfo(reason=reason, domain=DOMAIN, metadata=fields or {})


def _fields_of(error: PilotageError) -> dict[str, str]:
    match error:
        case NotFoundError():
            return {"kind": error.kind, "name": error.name}
        case LeaseLostError():
            return {"job_id": str(error.job_id), "attempt": str(error.attempt), "why": error.why}
        case ProofTimeError():
            return {"server_time_ms": str(error.server_time_ms)}
        case FeedPositionLostError():
            return {"position": str(error.position), "resume_after": str(error.resume_after), "why": error.why}
        case LeadershipLostError():
            return {"agent": error.agent}
        case _:
            return {}


def _bad_request(violations: tuple[Violation, ...]) -> BadRequest:
    listed = violations[:MAX_VIOLATIONS]
    fields = [
        BadRequest.FieldViolation(field=_shortened(violation.where), description=_shortened(violation.why))
        for violation in listed
    ]
    if len(violations) > len(listed):
        more = f"and {len(violations) - len(listed)} more faults"
        fields.append(BadRequest.FieldViolation(field="", description=more))
    return BadRequest(field_violations=fields)


def _shortened(text: str) -> str:
    sendable = text.encode("utf-8", "backslashreplace").decode()
    return sendable if len(sendable) <= LONGEST_MESSAGE else sendable[: LONGEST_MESSAGE - 1] + "…"


def error_of(call: grpc.RpcError) -> PilotageError:
    """Return the error of a failed call; a failure that is not one of our server's errors is a WorldError."""
    code, text = call.code(), call.details()
    status = _status_in(call.trailing_metadata() or ())
    error = _error_in(status) if status is not None else None
    return error or _transport_error(code, text or code.name)


def _status_in(metadata: Iterable[Any]) -> Status | None:
    for key, content in metadata:
        if key == _DETAILS_KEY:
            try:
                return Status.FromString(content)
            except DecodeError:
                return None
    return None


def _error_in(status: Status) -> PilotageError | None:
    info, request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(request) or detail.Unpack(retry)
    if info.domain != DOMAIN:
        return None
    if info.reason == _OVERLOADED:
        return OverloadedError(status.message, retry.retry_delay.ToNanoseconds() / 1e9)
    violations = tuple(Violation(each.field, each.description) for each in request.field_violations)
    if info.reason in _INVALID_BY_REASON and violations:
        return _INVALID_BY_REASON[info.reason](*violations)
    form = _BY_REASON.get(info.reason)
    return _decoded(form, status.message, info.metadata) if form else None


def _decoded(form: _ErrorForm, text: str, fields: Mapping[str, str]) -> PilotageError | None:
    try:
        return form.decode(text, fields)
    except (KeyError, ValueError):  # another release sends other fields: the status code is still enough
        return None


def _transport_error(code: grpc.StatusCode, text: str) -> PilotageError:
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return ServerUnreachableError(_connection_failure(text))
        case grpc.StatusCode.INTERNAL if text == _REQUEST_NOT_SENT:
            return ServerUnreachableError("the call ended before its request was sent")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerUnreachableError(f"no answer in time: {text}")
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidInputError(Violation("", text))
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(text)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDeniedError(text)
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.ABORTED:
            return StateConflictError(text)
        case _:
            return WorldError(f"{text} ({code.name})", transient=code is grpc.StatusCode.CANCELLED)


def _connection_failure(text: str) -> str:
    """Return gRPC's message of a failed connection in a readable form."""
    found = _NOT_CONNECTED.fullmatch(text)
    if found is None:
        return f"the connection to the server broke ({text})" if _BROKEN.search(text) else text
    why = next((meaning for fault, meaning in _TLS_FAULTS.items() if fault in found["why"]), None)
    if why is not None:
        return f"the server at {unquote(found['where'])} cannot be used: {why}"
    hint = "; it may demand TLS: name its authority" if found["why"] == "Socket closed" else ""
    return f"no server answers at {unquote(found['where'])}: {found['why'].rpartition('remote host: ')[2]}{hint}"
