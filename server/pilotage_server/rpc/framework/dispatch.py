"""Passes each call from its wire to its servicer's method: overload check, access check, request, handler.

Rules
-----
The number of calls in flight is limited (`admission`). A refusal happens before the token and the request are read, so
it costs next to nothing. The access check comes next, then the quotas of the caller, and last the request is read.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError

from pilotage.clock import BootClock, Clock
from pilotage.errors import InvalidInputError, UnauthenticatedError, Violation, WorldError
from pilotage.telemetry import trace_bound, trace_of_call
from pilotage_server.core.identity import Role
from pilotage_server.core.revocations import Revocations
from pilotage_server.rpc.framework.access import check_access
from pilotage_server.rpc.framework.admission import Admission, CallsInFlight
from pilotage_server.rpc.framework.call_counts import CallCounts
from pilotage_server.rpc.framework.calls import (
    Call,
    CallContext,
    CallInfo,
    CallWire,
    error_status,
    idle,
    is_hot,
    wait_for_event,
)
from pilotage_server.rpc.framework.proofs import PilotProofs
from pilotage_server.rpc.framework.scopes import check_scopes
from pilotage_server.rpc.framework.tokens import TokenVerifier, VerifiedToken, check_revocations


def in_event_loop(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a function that schedules `callback` in the running event loop, from any thread and without waiting."""
    loop = asyncio.get_running_loop()

    def schedule(*arguments: Any) -> None:
        loop.call_soon_threadsafe(callback, *arguments)

    return schedule


STALLED_S = 600.0
"""A stream whose caller neither sends nor takes a message for this time is ended: it may hold a file open."""


class LoopCalls:
    """Runs calls as tasks of the running event loop; a task is cancelled when its caller is gone.

    Streams last for hours, so `recheck` is called for each message; it raises the error that refuses the token.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, recheck: Callable[[VerifiedToken], None], stalled_s: float = STALLED_S
    ) -> None:
        self._tasks = tasks
        self._recheck = recheck
        self._stalled_s = stalled_s
        self._loop = asyncio.get_running_loop()

    def answer_async(self, call: Call[Any], respond: Callable[[], Awaitable[Any]]) -> None:
        """Answer the call with the result of `respond`."""

        async def run() -> None:
            call.answer(await respond())

        self._loop.call_soon_threadsafe(self._begin, call, run)

    def stream(self, call: Call[Any], messages: Callable[[], AsyncIterator[Any]]) -> None:
        """Send everything that `messages` yields; the next message is requested when the previous one is sent."""

        async def run() -> None:
            async with aclosing(messages()) as responses:  # type: ignore[type-var]
                async for response in responses:
                    self._recheck(call.token)
                    await self._send(call, response)
            call.finish()

        self._loop.call_soon_threadsafe(self._begin, call, run)

    async def _send(self, call: Call[Any], response: Any) -> None:
        sent = asyncio.Event()
        call.send(response, partial(self._loop.call_soon_threadsafe, sent.set))
        with idle():
            is_sent = await wait_for_event(self._stalled_s, sent)
        if not is_sent:
            call.wire.cancel()  # a status would wait behind the message
            raise WorldError(f"the caller has taken no message for {self._stalled_s:g} s", transient=True)

    async def requests(self, call: Call[Any], parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        """Yield the caller's messages; each is requested when the previous one has been taken."""
        received: asyncio.Queue[bytes | None] = asyncio.Queue()
        while True:
            call.wire.receive(lambda content: self._loop.call_soon_threadsafe(received.put_nowait, content))
            try:
                with idle():
                    async with asyncio.timeout(self._stalled_s):
                        content = await received.get()
            except TimeoutError:
                why = f"the caller has sent no message for {self._stalled_s:g} s"
                raise WorldError(why, transient=True) from None
            if content is None:
                return
            self._recheck(call.token)
            yield parse(content)

    def _begin(self, call: Call[Any], act: Callable[[], Awaitable[None]]) -> None:
        if not call.is_over:
            task = self._tasks.create_task(_run_call(call, act))
            call.on_end(partial(self._loop.call_soon_threadsafe, task.cancel))


async def _run_call(call: Call[Any], act: Callable[[], Awaitable[None]]) -> None:
    call.enter_context()
    with trace_bound(call.trace):
        try:
            await act()
        except Exception as error:  # the edge of a call: every error becomes a status
            call.fail(error)


log = structlog.get_logger()

_BEARER = "bearer "


class CallAccess:
    """The access check of all methods of Pilotage's services.

    It covers token, revocations, role, scopes, and the proof of an enrolled pilot. `revocations` returns the snapshot.
    """

    def __init__(
        self, verifier: TokenVerifier, revocations: Callable[[], Revocations], proofs: PilotProofs, clock: Clock
    ) -> None:
        self._verifier = verifier
        self._revocations = revocations
        self._proofs = proofs
        self._clock = clock

    def authorize(self, method: str, metadata: Mapping[str, Any]) -> VerifiedToken:
        """Return the verified token; raises the PilotageError that refuses the call."""
        now = self._clock()
        token = self._verifier.verify(_bearer_token(metadata), now)
        check_revocations(self._revocations(), token, now)
        check_access(method, token.identity)
        check_scopes(method, token.permissions)
        if Role.PILOT in token.identity.roles:
            self._proofs.check(method, metadata, token, now)
        return token

    def recheck(self, token: VerifiedToken) -> None:
        """Raise UnauthenticatedError if the token of an open call has expired, lost its key, or been revoked."""
        now = self._clock()
        self._verifier.recheck(token, now)
        check_revocations(self._revocations(), token, now)


def _bearer_token(metadata: Mapping[str, Any]) -> str:
    header = metadata.get("authorization")
    if header is None:
        raise UnauthenticatedError("the call carries no token")
    text = header.decode("ascii", "replace") if isinstance(header, bytes) else str(header)
    if text[: len(_BEARER)].lower() != _BEARER:
        raise UnauthenticatedError("the authorization header does not hold a bearer token")
    return text[len(_BEARER) :].strip()


Serve = Callable[[Call[Any]], None]


class Acceptor(Protocol):
    """Accepts the calls of registered methods; `grpc_calls.CallAcceptor` fulfils it, and `gateway.CallTable`."""

    def add(self, method: str, handler: Callable[[Any], object]) -> None:
        """Register a method by its full name; `handler` gets each call, always in the one serving thread."""

    def start(self) -> None:
        """Accept calls from now on."""


class Dispatcher:
    """Registers the methods of servicers and passes their calls on.

    It takes the place of gRPC's server in the generated `add_…Servicer_to_server` functions. Nothing of it is shared
    with a dispatcher that has another serving thread. `transport` = how its counts differ from those of gRPC.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        access: CallAccess,
        loop_calls: LoopCalls,
        admission: Admission,
        clock: BootClock,
        transport: str = "",
    ) -> None:
        self._acceptor = acceptor
        self._transport = transport
        self._access = access
        self._loop_calls = loop_calls
        self._admission = admission
        self._clock = clock
        self._log_ends = log.is_enabled_for(logging.DEBUG)  # asked once: a suppressed log line costs time too
        self.call_counts: list[CallCounts] = []
        """The calls of each registered method."""

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Do nothing: the same methods are registered by name too, which is faster."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Register the methods of a service; their calls are taken after `open`."""
        for name, handler in handlers.items():
            method = f"/{service}/{name}"
            self._acceptor.add(method, self._entry_point(method, handler))

    def open(self) -> None:
        """Take calls from now on."""
        self._acceptor.start()

    def _entry_point(self, method: str, handler: Any) -> Callable[[CallWire], None]:
        in_flight = self._admission.calls_to(method)
        counts = CallCounts(method, self._transport)
        self.call_counts.append(counts)
        context = CallContext(self._loop_calls, self._clock, self._log_ends, counts)
        serve = self._serving_function(handler, in_flight)

        def enter(wire: CallWire) -> None:
            overload = in_flight.overload_status()
            if overload is not None:
                _refuse(wire, overload, counts)
                return
            info = self._call_info(method, wire, counts)
            if info is None:
                return
            own = in_flight.calls_of(info.token.identity)
            beyond_quota = own.refusal()
            if beyond_quota is not None:
                _refuse(wire, beyond_quota, counts)
                return
            call: Call[Any] = Call(wire, info, handler.response_serializer, context, own)
            wire.on_end(call.mark_ended)
            serve(call)

        return enter

    def _call_info(self, method: str, wire: CallWire, counts: CallCounts) -> CallInfo | None:
        """Return the facts of a call that passes the access check; None = it has been refused."""
        metadata = wire.metadata()
        try:
            return CallInfo(method, self._access.authorize(method, metadata), self._clock())
        except Exception as error:  # there is no Call yet that could fail
            _refuse(wire, error_status(method, trace_of_call(metadata), error), counts)
            return None

    def _serving_function(self, handler: Any, in_flight: CallsInFlight) -> Serve:
        """Return the function that serves calls: hot, coroutine, upload stream or download stream."""
        parse = _parser(handler.request_deserializer)
        if handler.request_streaming:
            return partial(self._serve_upload, handler.stream_unary, parse)
        if handler.response_streaming:
            return partial(_with_request, in_flight, parse, partial(self._serve_stream, handler.unary_stream))
        if is_hot(handler.unary_unary):
            return partial(_with_request, in_flight, parse, handler.unary_unary)
        assert inspect.iscoroutinefunction(handler.unary_unary), "a method that is not hot is a coroutine"
        return partial(_with_request, in_flight, parse, partial(self._serve_unary, handler.unary_unary))

    def _serve_unary(self, method: Any, request: Any, call: Call[Any]) -> None:
        self._loop_calls.answer_async(call, partial(method, request, call))

    def _serve_stream(self, method: Any, request: Any, call: Call[Any]) -> None:
        self._loop_calls.stream(call, partial(method, request, call))

    def _serve_upload(self, method: Any, parse: Callable[[bytes], Any], call: Call[Any]) -> None:
        self._loop_calls.answer_async(call, lambda: method(self._loop_calls.requests(call, parse), call))


def _refuse(wire: CallWire, status: grpc.Status, counts: CallCounts) -> None:
    counts.add_refused(status.code.name)
    wire.refuse(status)


def _with_request(
    in_flight: CallsInFlight, parse: Callable[[bytes], Any], serve: Callable[[Any, Call[Any]], None], call: Call[Any]
) -> None:
    """Serve the call when its one request has arrived; until then it does not count as in flight."""

    def received(content: bytes | None) -> None:
        # Again: many calls may have arrived before the request of any.
        refusal = in_flight.overload_status() or call.in_flight.refusal_in_flight()
        if refusal is not None:
            call.wire.refuse(refusal)
            return
        call.in_flight.add(call)
        try:
            if content is None:
                raise InvalidInputError(Violation("", "the call has no request"))
            serve(parse(content), call)
        except Exception as error:  # the edge of a call: every error becomes a status
            call.fail(error)

    call.in_flight.discard(call)
    call.wire.receive(received)


def _parser(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(content: bytes) -> Any:
        try:
            return read(content)
        except DecodeError as error:
            raise InvalidInputError(Violation("", f"the request cannot be read: {error}")) from error

    return parse
