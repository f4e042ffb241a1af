"""The door: every call gets cause and identity, is logged, and has its errors translated here alone."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio
import structlog
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from pilotage.clock import BootClock, Clock
from pilotage.errors import PilotageError, UnauthenticatedError, WorldError
from pilotage.status import DOMAIN, make_status, status_of
from pilotage.telemetry import CAUSE_HEADER, cause_bound
from pilotage_server.core.identity import Identity
from pilotage_server.rpc.access import check_access, is_open
from pilotage_server.rpc.tokens import TokenVerifier, VerifiedToken

log = structlog.get_logger()

_caller: ContextVar[VerifiedToken] = ContextVar("caller")
_BEARER = "bearer "


def caller() -> Identity:
    """Return the identity that the call under way was made with."""
    return _caller.get().identity


def callers_token() -> VerifiedToken:
    """Return the identity of the call under way and when its token ends."""
    return _caller.get()


class Door(grpc.aio.ServerInterceptor):
    """Stands before every method of every service."""

    def __init__(self, verifier: TokenVerifier, clock: Clock, boot_clock: BootClock) -> None:
        self._verifier = verifier
        self._clock = clock
        self._boot_clock = boot_clock

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler with this door before it; an unknown method stays unknown."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or is_open(method):
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        return self._guarded(handler, method, metadata)

    def _guarded(self, handler: Any, method: str, metadata: Mapping[str, Any]) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            async with self._let_in(method, metadata, context):
                return await handler_function(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._let_in(method, metadata, context):
                async for message in handler_function(request, context):
                    yield message

        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            handler_function = handler.unary_stream
            return grpc.unary_stream_rpc_method_handler(stream, *coders)
        handler_function = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(answer, *coders)

    @asynccontextmanager
    async def _let_in(self, method: str, metadata: Mapping[str, Any], context: Any) -> AsyncIterator[None]:
        started = self._boot_clock()
        with cause_bound(metadata.get(CAUSE_HEADER)):
            try:
                token = self._verifier.verify(_bearer_token(metadata), self._clock())
                check_access(method, token.identity)
                _caller.set(token)
                yield
            except PilotageError as error:
                _log_refusal(method, error)
                await _abort(context, status_of(error))
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the outermost round of a call: nothing unexpected leaves as it is
                await _abort(context, _incident(method, error))
            finally:
                log.debug("call ended", method=method, took_ms=round(1000 * (self._boot_clock() - started), 3))


def _bearer_token(metadata: Mapping[str, Any]) -> str:
    header = metadata.get("authorization")
    if header is None:
        raise UnauthenticatedError("the call carries no token")
    text = header.decode("ascii", "replace") if isinstance(header, bytes) else str(header)
    if text[: len(_BEARER)].lower() != _BEARER:
        raise UnauthenticatedError("the authorization header does not hold a bearer token")
    return text[len(_BEARER) :].strip()


def _log_refusal(method: str, error: PilotageError) -> None:
    tell = log.warning if isinstance(error, WorldError) else log.info
    tell("call refused", method=method, kind=type(error).__name__, why=str(error))


def _incident(method: str, error: Exception) -> Status:
    incident = secrets.token_hex(6)
    log.error("call failed", method=method, incident=incident, exc_info=error)
    text = f"the server failed; its log tells more under incident {incident}"
    info = ErrorInfo(reason="INCIDENT", domain=DOMAIN, metadata={"incident": incident})
    return make_status(grpc.StatusCode.INTERNAL, text, info)


async def _abort(context: Any, status: Status) -> None:
    await context.abort_with_status(rpc_status.to_status(status))
