"""One call as grpcio's threaded server holds it, with verbs that return at once and call back.

grpcio itself keeps a thread waiting for each message that comes or goes, and sends a late answer in two steps;
both cost more than all else on the wire (docs/decisions/0009). What it does not promise to keep (`grpc._server` and
`cygrpc`) is used in this module alone; `pyproject.toml` bounds its version.

Rules
-----
What is handed in to be called back is called in the serving thread, the one that serves every call: it must return
at once. What it raises is logged by grpcio and goes no further: the thread has all other calls to serve.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc import _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_NO_FLAGS = 0
_RECEIVING = _server._RECEIVE_MESSAGE_TOKEN
_SENDING = _server._SEND_MESSAGE_TOKEN


class WireCall:
    """The bytes of one call, in and out."""

    __slots__ = ("_context", "_event", "_state")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._event = context._rpc_event
        self._state = context._state

    def metadata(self) -> dict[str, Any]:
        """Return what the call says beside its request, by key."""
        return dict(self._context.invocation_metadata())

    def on_end(self, hear: Callable[[], None]) -> None:
        """Let `hear` be called when the call is over, however it ended."""
        self._context.add_callback(hear)

    def receive(self, hear: Callable[[bytes | None], object]) -> None:
        """Ask for the next message; None = there is no more, or the caller is gone."""
        state = self._state

        def received(event: Any) -> Any:
            content = _server._serialized_request(event)
            with state.condition:
                ended, callbacks = _server._possibly_finish_call(state, _RECEIVING)
            return ended, (partial(hear, content), *callbacks)

        if not self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), _RECEIVING, received):
            hear(None)

    def send(self, content: bytes, hear: Callable[[], object]) -> None:
        """Send one message of several; `hear` is called once it is on its way, or will never be."""
        state = self._state

        def sent(_event: Any) -> Any:
            with state.condition:
                ended, callbacks = _server._possibly_finish_call(state, _SENDING)
            return ended, (hear, *callbacks)

        operations = [cygrpc.SendMessageOperation(content, _NO_FLAGS)]
        if state.initial_metadata_allowed:
            operations.insert(0, _server._get_initial_metadata_operation(state, None))
            state.initial_metadata_allowed = False
        if not self._start(operations, _SENDING, sent):
            hear()

    def _start(self, operations: Any, token: str, hear: Callable[[Any], Any]) -> bool:
        """Begin what will call back; False = the call is over."""
        with self._state.condition:
            if not _server._is_rpc_state_active(self._state):
                return False
            self._event.call.start_server_batch(operations, hear)
            self._state.due.add(token)
        return True

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        left_s: float = self._context.time_remaining()
        return left_s

    def finish(self, content: bytes | None) -> None:
        """End the call well, with a last message unless that is None."""
        _server._status(self._event, self._state, content)

    def refuse(self, status: grpc.Status) -> None:
        """End the call with an error."""
        self._context.set_trailing_metadata(status.trailing_metadata)
        self._context.set_code(status.code)
        self._context.set_details(status.details)
        _server._status(self._event, self._state, None)


class ServingThread(ThreadPoolExecutor):
    """Runs at once, in the serving thread, what grpcio would give to a pool: for handlers that only begin things."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` now."""
        fn(*args, **kwargs)
        return _DONE


_DONE: Future[Any] = Future()
_DONE.set_result(None)
