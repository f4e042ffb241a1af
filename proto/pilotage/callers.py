"""How calls are made: with a token, a cause and a deadline, again where that helps, and with errors that are ours.

Rules
-----
A call that gives no deadline has the usual one, over all its tries. A call that an overloaded server refused is made
again (`back_off`), apart from uploads: what was taken from a stream of requests is gone, so who brings one brings it
again himself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import grpc
import grpc.aio

from pilotage.back_off import BackOff
from pilotage.errors import OverloadedError, PilotageError
from pilotage.status import error_of
from pilotage.telemetry import CAUSE_HEADER, current_cause

STREAM_TIMEOUT_S = 3600.0
"""The deadline of a stream that gives none; who follows a feed resumes from its position."""


class _Details(NamedTuple):
    """What a call is made with; the shape that gRPC asks for."""

    method: Any
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any = None


class _Prepared:
    """Gives every call its token, its cause and its deadline."""

    def __init__(self, token: str | Callable[[], str], timeout_s: float) -> None:
        self._token = token
        self._timeout_s = timeout_s

    def timeout_s(self, details: Any, usual_s: float) -> float:
        """Return how long a call may take, in all its tries."""
        given_s: float | None = details.timeout
        return usual_s if given_s is None else given_s

    def prepared(self, details: Any, timeout_s: float) -> Any:
        """Return what a try is made with, which may take so long."""
        metadata = [*(details.metadata or ()), (CAUSE_HEADER, current_cause())]
        token = self._token() if callable(self._token) else self._token
        if token:
            metadata.append(("authorization", f"Bearer {token}"))
        return _Details(
            details.method,
            timeout_s,
            metadata,
            details.credentials,
            details.wait_for_ready,
            getattr(details, "compression", None),
        )


class Caller(
    _Prepared,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Makes calls in threads."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        return _insisting(
            lambda left_s: _finished(continuation(self.prepared(details, left_s), request)),
            self.timeout_s(details, self._timeout_s),
        )

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        return _finished(continuation(self.prepared(details, self.timeout_s(details, STREAM_TIMEOUT_S)), requests))

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the responses; reading them raises the PilotageError that the call failed with."""
        return _Stream(
            lambda left_s: continuation(self.prepared(details, left_s), request),
            self.timeout_s(details, STREAM_TIMEOUT_S),
        )


def _insisting(act: Callable[[float], Any], timeout_s: float) -> Any:
    """Return what `act` returns, given the seconds left, as soon as it is not refused for overload."""
    back_off = BackOff(timeout_s)
    while True:
        try:
            return act(back_off.left_s)
        except OverloadedError as refused:
            time.sleep(back_off.pause_s(refused))


def _finished(call: Any) -> Any:
    try:
        call.result()
    except grpc.RpcError as error:
        raise error_of(error) from error
    return call


class _Stream(Iterator[Any]):
    """The messages of a stream; `cancel` ends it from any thread."""

    def __init__(self, begin: Callable[[float], Any], timeout_s: float) -> None:
        self._begin = begin
        self._back_off = BackOff(timeout_s)
        self._call = begin(timeout_s)
        self._is_cancelled = False

    def __next__(self) -> Any:
        """Return the next message."""
        while True:
            try:
                return next(self._call)
            except grpc.RpcError as error:
                self._begin_again_after(error_of(error), error)

    def _begin_again_after(self, error: PilotageError, cause: grpc.RpcError) -> None:
        if not isinstance(error, OverloadedError):  # which comes before the first message, if at all
            raise error from cause
        time.sleep(self._back_off.pause_s(error))
        self._call = self._begin(self._back_off.left_s)
        if self._is_cancelled:
            self._call.cancel()

    def cancel(self) -> None:
        """End the stream."""
        self._is_cancelled = True
        self._call.cancel()


class AsyncUnaryCaller(_Prepared, grpc.aio.UnaryUnaryClientInterceptor):
    """Makes calls in the event loop."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        back_off = BackOff(self.timeout_s(details, self._timeout_s))
        while True:
            try:
                return await _async_finished(await continuation(self.prepared(details, back_off.left_s), request))
            except OverloadedError as refused:
                await asyncio.sleep(back_off.pause_s(refused))


class AsyncUploadCaller(_Prepared, grpc.aio.StreamUnaryClientInterceptor):
    """Brings streams of requests in the event loop."""

    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        timeout_s = self.timeout_s(details, STREAM_TIMEOUT_S)
        return await _async_finished(await continuation(self.prepared(details, timeout_s), requests))


class AsyncStreamCaller(_Prepared, grpc.aio.UnaryStreamClientInterceptor):
    """Reads streams of responses in the event loop."""

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the responses; reading them raises the PilotageError that the call failed with."""
        timeout_s = self.timeout_s(details, STREAM_TIMEOUT_S)

        async def begin(left_s: float) -> Any:
            return await continuation(self.prepared(details, left_s), request)

        return _messages(await begin(timeout_s), begin, BackOff(timeout_s))


async def _async_finished(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    return call


async def _messages(call: Any, begin: Callable[[float], Awaitable[Any]], back_off: BackOff) -> AsyncIterator[Any]:
    while True:
        try:
            async for message in call:
                yield message
            return
        except grpc.aio.AioRpcError as error:
            refused = error_of(error)
            if not isinstance(refused, OverloadedError):  # which comes before the first message, if at all
                raise refused from error
            await asyncio.sleep(back_off.pause_s(refused))
            call = await begin(back_off.left_s)
