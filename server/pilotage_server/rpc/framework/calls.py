"""One call: its caller, its deadline, its answer from any thread, and the mapping of errors to a status.

A servicer's method has one of two forms. A coroutine, or an asynchronous generator for a stream, runs in the event loop
and returns its response; gRPC's context argument is a `Call`. A hot method is a plain function in the serving thread,
which takes all calls. It must return within microseconds; another thread answers the call later:

    @hot
    def ReportState(self, request: ReportStateRequest, call: Call[ReportStateResponse]) -> None:
        heartbeat = heartbeat_from_wire(request)  # an exception refuses the call
        future = self._database.submit_batch(self._reports, Report(call.identity, heartbeat))
        future.add_done_callback(call.answer_with)

A hot method that has to wait continues as a coroutine, from any thread:

        call.answer_async(lambda: self._wait_for_work(call, request))
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import grpc
import structlog
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from pilotage.clock import BootClock
from pilotage.errors import PilotageError, WorldError
from pilotage.rpc.status import DOMAIN, make_status, status_of
from pilotage.telemetry import TraceContext, trace_of_call
from pilotage_server.core.identity import Identity
from pilotage_server.rpc.framework.call_counts import CallCounts
from pilotage_server.rpc.framework.tokens import VerifiedToken
from pilotage_server.storage.database.transaction import DatabaseUnavailableError

log = structlog.get_logger()


def error_status(method: str, trace: TraceContext, error: BaseException) -> grpc.Status:
    """Return the status of a call that ends with `error`, and log it; an unexpected error becomes an incident."""
    if isinstance(error, PilotageError):
        write_log = log.warning if isinstance(error, WorldError) else log.info
        write_log("call refused", method=method, trace_id=trace.trace_id, kind=type(error).__name__, why=str(error))
        content = status_of(error.for_callers() if isinstance(error, DatabaseUnavailableError) else error)
    else:
        content = _incident_status(method, trace, error)
    status: grpc.Status = rpc_status.to_status(content)
    return status


def _incident_status(method: str, trace: TraceContext, error: BaseException) -> Status:
    incident = secrets.token_hex(6)
    log.error("call failed", method=method, trace_id=trace.trace_id, incident=incident, exc_info=error)
    text = f"the server failed; its log has the details under incident {incident}"
    info = ErrorInfo(reason="INCIDENT", domain=DOMAIN, metadata={"incident": incident})
    return make_status(grpc.StatusCode.INTERNAL, text, info)


Response = TypeVar("Response")
Method = TypeVar("Method", bound=Callable[..., None])

_current_call: ContextVar[Call[Any]] = ContextVar("call_under_way")
_HOT = "_is_hot"


def hot(method: Method) -> Any:
    """Mark a servicer's method as a plain function that answers its call later (see the module)."""
    setattr(method, _HOT, True)
    return method  # as Any: the generated servicers declare no such methods


def is_hot(method: Callable[..., Any]) -> bool:
    """Return whether `hot` marks the servicer's method."""
    return getattr(method, _HOT, False)


def caller() -> Identity:
    """Return the identity of the caller whose call this coroutine serves."""
    return _current_call.get().identity


def caller_token() -> VerifiedToken:
    """Return the verified token of the call that this coroutine serves."""
    return _current_call.get().token


def caller_address() -> str:
    """Return the network address of the caller, for people."""
    return _current_call.get().wire.peer()


@contextmanager
def idle() -> Iterator[None]:
    """Do not count the call of this coroutine, if any, as in flight within the block, where it only waits."""
    call = _current_call.get(None)
    if call is None:
        yield
        return
    call.in_flight.discard(call)
    try:
        yield
    finally:
        call.in_flight.add(call)


class CallWire(Protocol):
    """One call on the wire; `grpc_calls.WireCall` fulfils it, and `gateway.http_calls.HttpCall`."""

    status_code: str
    """The name of the code with which the server has ended the call; CANCELLED = it has not."""

    def metadata(self) -> Mapping[str, Any]:
        """Return the call's metadata by key."""

    def peer(self) -> str:
        """Return the address of the caller, for people."""

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the serving thread when the call has ended, for whatever reason."""

    def receive(self, callback: Callable[[bytes | None], object]) -> None:
        """Request the next message; `callback` gets None at the end of the stream or of the call."""

    def send(self, content: bytes, on_sent: Callable[[], object]) -> None:
        """Send one message of several; `on_sent` is called when it is on its way, or when the call has ended."""

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""

    def finish(self, content: bytes | None) -> None:
        """End the call with status OK, with a last message unless that is None."""

    def refuse(self, status: grpc.Status) -> None:
        """End the call with an error."""

    def cancel(self) -> None:
        """End the call at once, with messages that the caller has not taken."""


class EventLoop(Protocol):
    """Runs the coroutines of calls; `dispatch.LoopCalls` fulfils it."""

    def answer_async(self, call: Call[Any], respond: Callable[[], Awaitable[Any]]) -> None:
        """Answer the call, soon and in the event loop, with the result of `respond`."""


class CountedCalls(Protocol):
    """The calls of a caller, open and in flight; `admission.CallerCalls` fulfils it."""

    def open(self, call: Call[Any]) -> None:
        """Count a call that has arrived."""

    def close(self, call: Call[Any]) -> None:
        """Do not count a call any more: it has ended."""

    def refusal_in_flight(self) -> grpc.Status | None:
        """Return the status that refuses one more call in flight of this caller; None = there is room."""

    def add(self, call: Call[Any]) -> None:
        """Count an open call as in flight."""

    def discard(self, call: Call[Any]) -> None:
        """Do not count a call as in flight any more."""


class CallContext(NamedTuple):
    """What all calls of a method share. `log_ends` = the end of each call is logged."""

    loop: EventLoop
    clock: BootClock
    log_ends: bool
    counts: CallCounts


class CallInfo(NamedTuple):
    """Method, token, and time of arrival (boot clock) of a call that passed the access check."""

    method: str
    token: VerifiedToken
    arrived_s: float


class Call(Generic[Response]):
    """One call, answered at most once; an answer after the end of the call is dropped.

    `serialize` makes the bytes of a response; `in_flight` counts the call while it does not merely wait.
    """

    __slots__ = ("_context", "_is_answered", "_on_end", "_serialize", "_trace", "in_flight", "info", "is_over", "wire")

    def __init__(
        self,
        wire: CallWire,
        info: CallInfo,
        serialize: Callable[[Response], bytes],
        context: CallContext,
        in_flight: CountedCalls,
    ) -> None:
        self.wire = wire
        self.info = info
        self.is_over = False
        self._serialize = serialize
        self._context = context
        self._is_answered = False
        self._on_end: Callable[[], object] | None = None
        self._trace: TraceContext | None = None
        self.in_flight = in_flight
        in_flight.open(self)

    @property
    def identity(self) -> Identity:
        """The identity of the caller."""
        return self.info.token.identity

    @property
    def token(self) -> VerifiedToken:
        """The verified token of the caller."""
        return self.info.token

    @property
    def trace(self) -> TraceContext:
        """The trace of the caller, else a new one; it is read when it is needed, as most hot calls never do."""
        if self._trace is None:
            self._trace = trace_of_call(self.wire.metadata())
        return self._trace

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        return self.wire.time_remaining()

    def answer(self, response: Response | bytes) -> None:
        """Send the response, or its bytes, from any thread."""
        assert not self._is_answered, f"{self.info.method} has been answered before"
        content = response if isinstance(response, bytes) else self._serialize(response)
        self._is_answered = True
        self.wire.finish(content)

    def answer_with(self, future: Future[Response] | Future[bytes]) -> None:
        """Answer with the result or the error of a future that is done."""
        error = future.exception()
        if error is None:
            self.answer(future.result())
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Refuse the call, from any thread; an error that is no PilotageError becomes an incident."""
        status = error_status(self.info.method, self.trace, error)
        if not self._is_answered:  # else the error is only logged
            self._is_answered = True
            self.wire.refuse(status)

    def send(self, response: Response, on_sent: Callable[[], object]) -> None:
        """Send one response of several; `on_sent` is called, in the serving thread, when the next one may follow."""
        self.wire.send(self._serialize(response), on_sent)

    def finish(self) -> None:
        """End a stream of responses."""
        self._is_answered = True
        self.wire.finish(None)

    def answer_async(self, respond: Callable[[], Awaitable[Response | bytes]]) -> None:
        """Answer with the result of `respond`, awaited in the event loop and cancelled when the caller is gone."""
        self._context.loop.answer_async(self, respond)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` if the call ends unanswered; at once if it has ended."""
        self._on_end = callback
        if self.is_over:
            callback()

    def mark_ended(self) -> None:
        """Record the end of the call, answered or not."""
        self.is_over = True
        self.in_flight.close(self)
        act, self._on_end = self._on_end, None  # it may refer to this call: no cycle is left
        if act is not None and not self._is_answered:
            act()
        context, info = self._context, self.info
        took_s = context.clock() - info.arrived_s
        context.counts.add(self.wire.status_code, took_s)
        if context.log_ends:
            log.debug("call ended", method=info.method, trace_id=self.trace.trace_id, took_ms=round(1000 * took_s, 3))

    def enter_context(self) -> None:
        """Make this the call of the running coroutine, for `caller` and `idle`."""
        _current_call.set(self)


ANSWER_MARGIN_S = 1.0
"""A waiting call answers this long before its deadline, so that the answer arrives in time."""


class Timed(Protocol):
    """A call with or without a deadline."""

    def time_remaining(self) -> float:
        """Return the seconds left; infinite where the call has no deadline."""


def wait_time_s(call: Timed, wanted_s: float, longest_s: float) -> float:
    """Return how long the call may wait: the minimum of request, server limit and time to the deadline."""
    return max(0.0, min(wanted_s, longest_s, call.time_remaining() - ANSWER_MARGIN_S))


async def wait_for_event(timeout_s: float, event: asyncio.Event) -> bool:
    """Wait for `event`; False = the timeout passed first."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
