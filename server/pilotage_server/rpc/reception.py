"""Takes every call as it comes: lets it in, reads its request, and gives it to the servicer's method."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from pilotage.clock import BootClock
from pilotage.errors import InvalidInputError, Violation
from pilotage.telemetry import CAUSE_HEADER, sane_cause
from pilotage_server.rpc.calls import Call, Surroundings, Visit, is_hot
from pilotage_server.rpc.door import Door
from pilotage_server.rpc.in_flight import CallsInFlight
from pilotage_server.rpc.loop_calls import LoopCalls
from pilotage_server.rpc.refusals import refusal
from pilotage_server.rpc.wire_calls import Intake, WireCall

log = structlog.get_logger()

Serve = Callable[[Call[Any]], None]


class Reception:
    """Where the generated `add_…Servicer_to_server` functions register methods, instead of at gRPC's server."""

    def __init__(
        self, server: grpc.Server, door: Door, loop_calls: LoopCalls, in_flight: CallsInFlight, clock: BootClock
    ) -> None:
        self._intake = Intake(server)
        self._door = door
        self._loop_calls = loop_calls
        self._in_flight = in_flight
        tells_ends = log.is_enabled_for(logging.DEBUG)  # asked once: even a line that is not written costs its part
        self._around = Surroundings(loop_calls, in_flight, clock, tells_ends)

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Do nothing: the same methods are registered by name too, which is quicker."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Serve these methods of a service once all is open."""
        for name, handler in handlers.items():
            method = f"/{service}/{name}"
            self._intake.add(method, self._entrance(method, handler))

    def open(self) -> None:
        """Start the server and take calls from now on."""
        self._intake.start()

    def _entrance(self, method: str, handler: Any) -> Callable[[WireCall], None]:
        serve = self._way(handler)

        def enter(wire: WireCall) -> None:
            refused = self._in_flight.refusal()
            if refused is not None:
                wire.refuse(refused)
                return
            visit = self._visit(method, wire)
            if visit is not None:
                call: Call[Any] = Call(wire, visit, handler.response_serializer, self._around)
                wire.on_end(call.ended)
                serve(call)

        return enter

    def _visit(self, method: str, wire: WireCall) -> Visit | None:
        """Return what the door says of a call; None = it was refused there."""
        metadata = wire.metadata()
        cause = sane_cause(metadata.get(CAUSE_HEADER))
        try:
            return Visit(method, self._door.let_in(method, metadata), cause, self._around.clock())
        except Exception as error:  # no call is known yet that could be failed
            wire.refuse(refusal(method, cause, error))
            return None

    def _way(self, handler: Any) -> Serve:
        """Return how calls are served: by a hot function, a coroutine, or one that takes or gives a stream."""
        parse = _parser(handler.request_deserializer)
        if handler.request_streaming:
            return partial(self._upload, handler.stream_unary, parse)
        if handler.response_streaming:
            return partial(_with_request, parse, partial(self._stream, handler.unary_stream))
        if is_hot(handler.unary_unary):
            return partial(_with_request, parse, handler.unary_unary)
        assert inspect.iscoroutinefunction(handler.unary_unary), "a method that is not hot is a coroutine"
        return partial(_with_request, parse, partial(self._wait, handler.unary_unary))

    def _wait(self, method: Any, request: Any, call: Call[Any]) -> None:
        self._loop_calls.go_on(call, partial(method, request, call))

    def _stream(self, method: Any, request: Any, call: Call[Any]) -> None:
        self._loop_calls.stream(call, partial(method, request, call))

    def _upload(self, method: Any, parse: Callable[[bytes], Any], call: Call[Any]) -> None:
        self._loop_calls.go_on(call, lambda: method(self._loop_calls.requests(call, parse), call))


def _with_request(parse: Callable[[bytes], Any], serve: Callable[[Any, Call[Any]], None], call: Call[Any]) -> None:
    """Serve the call as soon as its one request is there; until then it only waits."""

    def received(content: bytes | None) -> None:
        call.in_flight.add(call)
        try:
            if content is None:
                raise InvalidInputError(Violation("", "the call brings no request"))
            serve(parse(content), call)
        except Exception as error:  # the outermost round of a call: nothing unexpected leaves as it is
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
