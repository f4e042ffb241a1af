"""Calls of grpcio's threaded server as objects whose methods return at once and call back.

grpcio's own call objects keep a thread for each awaited message, and a record with a context and locks for each call.
They also send a late answer in two steps. That costs more than the rest of the way over the wire
(docs/decisions/0009), so the methods added here bypass them: grpcio keeps the sockets, the serving thread and the
shutdown. This is the only module that uses `grpc._server` and `cygrpc`, which have no stability promise;
`pyproject.toml` bounds grpcio's version.

Rules
-----
Callbacks run in the serving thread, which serves every call: they must return at once. grpcio logs what they raise and
continues, because the thread has all other calls to serve.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import grpc
from grpc import _common, _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from pilotage import clock

_NO_FLAGS = 0
_NO_METADATA = None

_BatchResult = tuple[object, tuple[Callable[[], object], ...]]
"""The result that grpcio expects of an event handler: the call that has ended or None, and the callbacks to run now."""


class WireCall:
    """The bytes of one call, in and out."""

    __slots__ = (
        *("_call", "_deadline_s", "_is_open", "_lock", "_metadata", "_metadata_sent", "_on_end", "_pending"),
        "status_code",
    )

    def __init__(self, event: Any) -> None:
        self.status_code = "CANCELLED"
        """The name of the code with which the server has ended the call; CANCELLED = it has not."""
        self._call = event.call
        self._deadline_s: float = event.call_details.deadline
        self._metadata = event.invocation_metadata
        self._lock = Lock()
        self._pending = 0  # operations that have started and not ended
        self._is_open = True
        self._metadata_sent = False
        self._on_end: tuple[Callable[[], object], ...] = ()
        self._start((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._on_close)

    def metadata(self) -> dict[str, Any]:
        """Return the call's metadata by key."""
        return dict(self._metadata)

    def peer(self) -> str:
        """Return the address of the caller, such as "ipv4:192.0.2.1:40000"."""
        text: bytes | str = self._call.peer()
        return text.decode() if isinstance(text, bytes) else text

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the call has ended, for whatever reason. For the serving thread only."""
        self._on_end = (callback,)

    def receive(self, callback: Callable[[bytes | None], object]) -> None:
        """Request the next message; `callback` gets None at the end of the stream or of the call."""

        def received(event: Any) -> _BatchResult:
            return self._done(partial(callback, event.batch_operations[0].message()))

        if not self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), received):
            callback(None)

    def send(self, content: bytes, on_sent: Callable[[], object]) -> None:
        """Send one message of several; `on_sent` is called when it is on its way, or when the call has ended."""
        operations = (*self._initial_metadata(), cygrpc.SendMessageOperation(content, _NO_FLAGS))
        self._metadata_sent = True
        if not self._start(operations, lambda _event: self._done(on_sent)):
            on_sent()

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        return max(0.0, self._deadline_s - clock.now().timestamp())

    def finish(self, content: bytes | None) -> None:
        """End the call with status OK, with a last message unless that is None."""
        message = () if content is None else (cygrpc.SendMessageOperation(content, _NO_FLAGS),)
        status = cygrpc.SendStatusFromServerOperation(_NO_METADATA, cygrpc.StatusCode.ok, b"", _NO_FLAGS)
        self._start((*self._initial_metadata(), *message, status), self._on_status_sent, code="OK")

    def refuse(self, status: grpc.Status) -> None:
        """End the call with an error."""
        code = _common.STATUS_CODE_TO_CYGRPC_STATUS_CODE[status.code]
        details = _common.encode(status.details)
        send_status = cygrpc.SendStatusFromServerOperation(status.trailing_metadata, code, details, _NO_FLAGS)
        self._start((*self._initial_metadata(), send_status), self._on_status_sent, code=status.code.name)

    def cancel(self) -> None:
        """End the call at once, with messages that the caller has not taken; from any thread."""
        self._call.cancel(cygrpc.StatusCode.cancelled, "the call was cancelled by the server")

    def _initial_metadata(self) -> tuple[Any, ...]:
        return () if self._metadata_sent else (cygrpc.SendInitialMetadataOperation(_NO_METADATA, _NO_FLAGS),)

    def _start(self, operations: Any, callback: Callable[[Any], _BatchResult], *, code: str = "") -> bool:
        """Start operations whose end calls back; False = the call has ended. With a `code` they are the last ones."""
        with self._lock:
            if not self._is_open:
                return False
            if code:
                self._is_open = False
                self.status_code = code
            self._pending += 1
            self._call.start_server_batch(operations, callback)
        return True

    def _on_close(self, _event: Any) -> _BatchResult:
        with self._lock:
            self._is_open = False
        return self._done()

    def _on_status_sent(self, _event: Any) -> _BatchResult:
        return self._done()

    def _done(self, *callbacks: Callable[[], object]) -> _BatchResult:
        """Count one operation less; after the last one the call has ended."""
        with self._lock:
            self._pending -= 1
            if self._pending:
                return None, callbacks
        on_end, self._on_end = self._on_end, ()  # the callback may refer to this call: leave no reference cycle
        return self, (*callbacks, *on_end)


class CallAcceptor:
    """Accepts calls of registered methods: each becomes a `WireCall`, which the method's handler gets."""

    def __init__(self, server: grpc.Server) -> None:
        self._server: Any = server
        self._arrivals: list[_MethodAcceptor] = []

    def add(self, method: str, handler: Callable[[WireCall], object]) -> None:
        """Register a method by its full name; its calls are accepted after `start`."""
        self._server._state.server.register_method(method)
        self._arrivals.append(_MethodAcceptor(self._server._state, method, handler))

    def start(self) -> None:
        """Start the server and accept calls from now on."""
        self._server.start()
        for arrivals in self._arrivals:
            arrivals.request_next()


class _MethodAcceptor:
    """Accepts the calls of one method. `state` is that of grpcio's server, which lasts while operations are pending."""

    def __init__(self, state: Any, method: str, handler: Callable[[WireCall], object]) -> None:
        self._state = state
        self._method = method
        self._handler = handler

    def request_next(self) -> None:
        """Ask grpcio for the next call."""
        queue = self._state.completion_queue
        with self._state.lock:
            self._state.due.add(self)
            self._state.server.request_registered_call(queue, queue, self._method, self)

    def __call__(self, event: Any) -> _BatchResult:
        """Handle a new call, or the shutdown of the server."""
        state = self._state
        with state.lock:
            state.due.remove(self)
            if not event.success:
                state.rpc_states.add(self)  # returned below: grpcio then checks whether everything has ended
                return self, ()
            call = WireCall(event)
            state.rpc_states.add(call)
            if state.stage is _server._ServerStage.STARTED:
                self.request_next()
        return None, (partial(self._handler, call),)
