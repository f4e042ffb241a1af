"""The status of a refused call as an answer over HTTP: problem details (RFC 9457)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import grpc
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from pilotage.errors import PilotageError
from pilotage.rpc.status import status_of

MEDIA_TYPE = "application/problem+json"

_HTTP: Mapping[str, HTTPStatus] = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "FAILED_PRECONDITION": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "INTERNAL": HTTPStatus.INTERNAL_SERVER_ERROR,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
}
"""HTTP status by gRPC's code; other codes are 500."""

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that refuses a call: HTTP status, headers beside the content type, and the JSON object."""

    status: HTTPStatus
    headers: Mapping[str, str]
    content: Mapping[str, Any]


def new_problem(status: HTTPStatus, detail: str, reason: str, headers: Mapping[str, str] | None = None) -> Problem:
    """Return a problem of the gateway itself."""
    content = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail, "reason": reason}
    return Problem(status, headers or {}, content)


def problem_of_error(error: PilotageError) -> Problem:
    """Return the problem of an error of the caller that the gateway has found."""
    return _problem(status_of(error))


def problem_of_refusal(refusal: grpc.Status) -> Problem:
    """Return the problem of a call that has been refused."""
    for key, details in refusal.trailing_metadata or ():
        if key == _DETAILS_KEY:
            return _problem(Status.FromString(details))
    return _problem(Status(code=refusal.code.value[0], message=refusal.details))


def _problem(status: Status) -> Problem:
    code = Code.Name(status.code)
    info, request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(request) or detail.Unpack(retry)
    problem = new_problem(_HTTP.get(code, HTTPStatus.INTERNAL_SERVER_ERROR), status.message, info.reason or code)
    more: dict[str, Any] = {}
    if request.field_violations:
        more["violations"] = [
            {"field": each.field, "description": each.description} for each in request.field_violations
        ]
    if info.metadata:
        more["fields"] = dict(info.metadata)
    headers: dict[str, str] = {}
    if problem.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if retry.HasField("retry_delay"):
        delay_s = retry.retry_delay.ToNanoseconds() / 1e9
        more["retry_after_s"] = delay_s
        headers["Retry-After"] = str(math.ceil(delay_s))
    return Problem(problem.status, headers, {**problem.content, **more})
