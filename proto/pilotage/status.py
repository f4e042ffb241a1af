"""Pilotage's errors ↔ google.rpc.Status, so that an error raised in a server is the same error in its client.

Rules
-----
An error that is not Pilotage's own never crosses the wire as it is: an incident's id stands for it.
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
    InvalidInputError,
    InvalidJobError,
    InvalidRequirementsError,
    InvalidTreeError,
    LeaseLostError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    StateConflictError,
    TurnLostError,
    UnauthenticatedError,
    Violation,
    WorldError,
)

DOMAIN = "pilotage"
"""The domain of every ErrorInfo."""

MOST_VIOLATIONS = 500
"""More faults than these are counted, not listed: a status travels in one header."""

LONGEST_MESSAGE = 2000
"""Characters of a status's message and of each description in it."""

RETRY_AFTER_S = 1.0
"""What RetryInfo says after a passing failure."""

_DETAILS_KEY = "grpc-status-details-bin"
_NOT_CONNECTED = re.compile(r".*last error: \w+: ipv[46]:(?P<where>\S+): (?P<why>.+)", re.DOTALL)

_BROKEN = re.compile(r"Stream removed|Socket closed|recvmsg:|GOAWAY|Cancelling all calls")


@dataclass(frozen=True, slots=True)
class _Form:
    """How one kind of error looks on the wire, and how it is made again."""

    code: grpc.StatusCode
    reason: str
    again: Callable[[str, Mapping[str, str]], PilotageError]


_FORMS: Mapping[type[PilotageError], _Form] = {
    NotFoundError: _Form(
        grpc.StatusCode.NOT_FOUND, "NOT_FOUND", lambda _, told: NotFoundError(told["kind"], told["name"])
    ),
    UnauthenticatedError: _Form(
        grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", lambda text, _: UnauthenticatedError(text)
    ),
    PermissionDeniedError: _Form(
        grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", lambda text, _: PermissionDeniedError(text)
    ),
    LeaseLostError: _Form(
        grpc.StatusCode.ABORTED,
        "LEASE_LOST",
        lambda _, told: LeaseLostError(int(told["job_id"]), int(told["attempt"]), told["why"]),
    ),
    TurnLostError: _Form(grpc.StatusCode.ABORTED, "TURN_LOST", lambda _, told: TurnLostError(told["agent"])),
    StateConflictError: _Form(
        grpc.StatusCode.FAILED_PRECONDITION, "STATE_CONFLICT", lambda text, _: StateConflictError(text)
    ),
    WorldError: _Form(grpc.StatusCode.INTERNAL, "WORLD_FAILED", lambda text, _: WorldError(text, transient=False)),
}
_BUSY = _Form(grpc.StatusCode.UNAVAILABLE, "WORLD_BUSY", lambda text, _: WorldError(text, transient=True))
_OVERLOADED, _OVERLOADED_CODE = "OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED
_INVALID: Mapping[type[InvalidInputError], str] = {
    InvalidInputError: "INVALID_INPUT",
    InvalidRequirementsError: "INVALID_REQUIREMENTS",
    InvalidTreeError: "INVALID_TREE",
    InvalidJobError: "INVALID_JOB",
}
_BY_REASON = {form.reason: form for form in (*_FORMS.values(), _BUSY)}
_INVALID_BY_REASON = {reason: kind for kind, reason in _INVALID.items()}


def status_of(error: PilotageError) -> Status:
    """Return the status that says `error` on the wire, with its fields in the details."""
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
    status = Status(code=number, message=_short(text))
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
        case TurnLostError():
            return {"agent": error.agent}
        case _:
            return {}


def _bad_request(violations: tuple[Violation, ...]) -> BadRequest:
    listed = violations[:MOST_VIOLATIONS]
    fields = [
        BadRequest.FieldViolation(field=_short(violation.where), description=_short(violation.why))
        for violation in listed
    ]
    if len(violations) > len(listed):
        more = f"and {len(violations) - len(listed)} more faults"
        fields.append(BadRequest.FieldViolation(field="", description=more))
    return BadRequest(field_violations=fields)


def _short(text: str) -> str:
    sendable = text.encode("utf-8", "backslashreplace").decode()
    return sendable if len(sendable) <= LONGEST_MESSAGE else sendable[: LONGEST_MESSAGE - 1] + "…"


def error_of(call: grpc.RpcError) -> PilotageError:
    """Return the error that a failed call stands for; what no server of ours said is a WorldError."""
    code, text = call.code(), call.details()
    status = _status_in(call.trailing_metadata() or ())
    said = _error_said(status) if status is not None else None
    return said or _error_of_transport(code, text or code.name)


def _status_in(metadata: Iterable[Any]) -> Status | None:
    for key, content in metadata:
        if key == _DETAILS_KEY:
            try:
                return Status.FromString(content)
            except DecodeError:
                return None
    return None


def _error_said(status: Status) -> PilotageError | None:
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
    return _made_again(form, status.message, info.metadata) if form else None


def _made_again(form: _Form, text: str, fields: Mapping[str, str]) -> PilotageError | None:
    try:
        return form.again(text, fields)
    except (KeyError, ValueError):  # another release tells other fields: its code still says enough
        return None


def _error_of_transport(code: grpc.StatusCode, text: str) -> PilotageError:
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return ServerUnreachableError(_not_connected(text))
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


def _not_connected(text: str) -> str:
    """Return gRPC's account of a connection that failed as people would give it."""
    told = _NOT_CONNECTED.fullmatch(text)
    if told is None:
        return f"the connection to the server broke ({text})" if _BROKEN.search(text) else text
    return f"no server answers at {unquote(told['where'])}: {told['why'].rpartition('remote host: ')[2]}"
