"""Calls as grpcio's threaded server brings them, with verbs that return at once and call back.

grpcio itself would keep a thread for each message that is awaited, and for each call a record with a context and locks;
and it sends a late answer in two steps. All that costs more than the rest of the way over the wire
(docs/decisions/0009). So calls of the methods that are added here go past it: it is left the sockets, the serving
thread and the end of the server. What it does not promise to keep (`grpc._server` and `cygrpc`) is used in this module
alone; `pyproject.toml` bounds its version.

Rules
-----
What is handed in to be called back is called in the serving thread, the one that serves every call: it must return
at once. What it raises is logged by grpcio and goes no further: the thread has all other calls to serve.
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

_Heard = tuple[object, tuple[Callable[[], object], ...]]
"""What grpcio wants from who hears of an event: the call that is over, None = none is; and what is to be called now."""


class WireCall:
    """The bytes of one call, in and out."""

    __slots__ = ("_call", "_deadline_s", "_due", "_has_begun", "_is_open", "_lock", "_metadata", "_on_end")

    def __init__(self, event: Any) -> None:
        self._call = event.call
        self._deadline_s: float = event.call_details.deadline
        self._metadata = event.invocation_metadata
        self._lock = Lock()
        self._due = 0  # so many operations have begun and not ended yet
        self._is_open = True
        self._has_begun = False
        self._on_end: tuple[Callable[[], object], ...] = ()
        self._start((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._over)

    def metadata(self) -> dict[str, Any]:
        """Return what the call says beside its request, by key."""
        return dict(self._metadata)

    def on_end(self, hear: Callable[[], object]) -> None:
        """Let `hear` be called when the call is over, however it ended; for the serving thread."""
        self._on_end = (hear,)

    def receive(self, hear: Callable[[bytes | None], object]) -> None:
        """Ask for the next message; None = there is no more, or the caller is gone."""

        def received(event: Any) -> _Heard:
            return self._done(partial(hear, event.batch_operations[0].message()))

        if not self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), received):
            hear(None)

    def send(self, content: bytes, hear: Callable[[], object]) -> None:
        """Send one message of several; `hear` is called once it is on its way, or will never be."""
        operations = (*self._beginning(), cygrpc.SendMessageOperation(content, _NO_FLAGS))
        self._has_begun = True
        if not self._start(operations, lambda _event: self._done(hear)):
            hear()

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        return max(0.0, self._deadline_s - clock.now().timestamp())

    def finish(self, content: bytes | None) -> None:
        """End the call well, with a last message unless that is None."""
        message = () if content is None else (cygrpc.SendMessageOperation(content, _NO_FLAGS),)
        status = cygrpc.SendStatusFromServerOperation(_NO_METADATA, cygrpc.StatusCode.ok, b"", _NO_FLAGS)
        self._start((*self._beginning(), *message, status), self._ended, is_last=True)

    def refuse(self, status: grpc.Status) -> None:
        """End the call with an error."""
        code = _common.STATUS_CODE_TO_CYGRPC_STATUS_CODE[status.code]
        details = _common.encode(status.details)
        said = cygrpc.SendStatusFromServerOperation(status.trailing_metadata, code, details, _NO_FLAGS)
        self._start((*self._beginning(), said), self._ended, is_last=True)

    def _beginning(self) -> tuple[Any, ...]:
        return () if self._has_begun else (cygrpc.SendInitialMetadataOperation(_NO_METADATA, _NO_FLAGS),)

    def _start(self, operations: Any, hear: Callable[[Any], _Heard], *, is_last: bool = False) -> bool:
        """Begin what will call back; False = the call is over."""
        with self._lock:
            if not self._is_open:
                return False
            self._is_open = not is_last
            self._due += 1
            self._call.start_server_batch(operations, hear)
        return True

    def _over(self, _event: Any) -> _Heard:
        """Hear that the caller has all that he gets, or is gone."""
        with self._lock:
            self._is_open = False
        return self._done()

    def _ended(self, _event: Any) -> _Heard:
        return self._done()

    def _done(self, *heard: Callable[[], object]) -> _Heard:
        """Note that an operation has ended; when none is left, the one that waits for the end of the call has too."""
        with self._lock:
            self._due -= 1
            if self._due:
                return None, heard
        on_end, self._on_end = self._on_end, ()  # who hears of the end may hold this call: no circle is left
        return self, (*heard, *on_end)


class Intake:
    """Takes calls of methods at a server of grpcio: each becomes a `WireCall` and is given to its method's `enter`."""

    def __init__(self, server: grpc.Server) -> None:
        self._server: Any = server
        self._arrivals: list[_Arrivals] = []

    def add(self, method: str, enter: Callable[[WireCall], object]) -> None:
        """Let calls of a method, by its full name, come in when the server has been started."""
        self._server._state.server.register_method(method)
        self._arrivals.append(_Arrivals(self._server._state, method, enter))

    def start(self) -> None:
        """Start the server and take calls from now on."""
        self._server.start()
        for arrivals in self._arrivals:
            arrivals.await_next()


class _Arrivals:
    """The calls of one method, as they come; `state` is that of grpcio's server, which lasts while anything is due."""

    def __init__(self, state: Any, method: str, enter: Callable[[WireCall], object]) -> None:
        self._state = state
        self._method = method
        self._enter = enter

    def await_next(self) -> None:
        """Ask for the next call."""
        queue = self._state.completion_queue
        with self._state.lock:
            self._state.due.add(self)
            self._state.server.request_registered_call(queue, queue, self._method, self)

    def __call__(self, event: Any) -> _Heard:
        """Hear that a call has come, or that the server ends and no more will."""
        state = self._state
        with state.lock:
            state.due.remove(self)
            if not event.success:
                state.rpc_states.add(self)  # to be given back, for then grpcio sees whether all is over
                return self, ()
            call = WireCall(event)
            state.rpc_states.add(call)
            if state.stage is _server._ServerStage.STARTED:
                self.await_next()
        return None, (partial(self._enter, call),)
