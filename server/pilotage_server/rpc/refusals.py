"""Errors become statuses here alone: what is ours as it is, what is not as an incident that the log tells of."""

from __future__ import annotations

import secrets

import grpc
import structlog
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from pilotage.errors import PilotageError, WorldError
from pilotage.status import DOMAIN, make_status, status_of

log = structlog.get_logger()


def refusal(method: str, cause: str, error: BaseException) -> grpc.Status:
    """Return the status of a call that ends with `error`, and log it."""
    if isinstance(error, PilotageError):
        tell = log.warning if isinstance(error, WorldError) else log.info
        tell("call refused", method=method, cause=cause, kind=type(error).__name__, why=str(error))
        said = status_of(error)
    else:
        said = _incident(method, cause, error)
    status: grpc.Status = rpc_status.to_status(said)
    return status


def _incident(method: str, cause: str, error: BaseException) -> Status:
    incident = secrets.token_hex(6)
    log.error("call failed", method=method, cause=cause, incident=incident, exc_info=error)
    text = f"the server failed; its log tells more under incident {incident}"
    info = ErrorInfo(reason="INCIDENT", domain=DOMAIN, metadata={"incident": incident})
    return make_status(grpc.StatusCode.INTERNAL, text, info)
