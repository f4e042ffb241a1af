"""One call over HTTP, as the dispatcher sees it: messages and status go to the gateway's loop as events.

Servicers answer in other threads and in another loop than those of the gateway. Whatever they send becomes an event of
the call, in order; the connection's task takes the events and writes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from pilotage.clock import BootClock


class RequestWanted(NamedTuple):
    """The call wants its next request; None = there is no further one."""

    callback: Callable[[bytes | None], object]


class MessageSent(NamedTuple):
    """The call has sent a message; `on_sent` lets it send the next one, None = this is the last."""

    content: bytes
    on_sent: Callable[[], object] | None


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The call has ended well, after all of its messages."""


@dataclass(frozen=True, slots=True)
class CallRefused:
    """The call has ended with an error; None = it was cancelled."""

    status: grpc.Status | None


HttpEvent = RequestWanted | MessageSent | CallFinished | CallRefused


class HttpCall:
    """A call over HTTP; fulfils `calls.CallWire`. `until_s` = its deadline on the boot clock."""

    def __init__(self, metadata: Mapping[str, str], peer: str, until_s: float, clock: BootClock) -> None:
        self.status_code = "CANCELLED"
        """The name of gRPC's code with which the call has ended; CANCELLED = the server has not ended it."""
        self._metadata = metadata
        self._peer = peer
        self._until_s = until_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._events = asyncio.Queue[HttpEvent]()
        self._on_end: Callable[[], object] | None = None

    async def next_event(self) -> HttpEvent:
        """Wait for the next event."""
        return await self._events.get()

    def end(self, code: str = "") -> None:
        """Record the end of the call in the gateway's thread, exactly once; `code` = why the gateway ends it."""
        if code:
            self.status_code = code
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def metadata(self) -> Mapping[str, Any]:
        """Return the headers that calls know, by lower-case name."""
        return self._metadata

    def peer(self) -> str:
        """Return the address of the caller."""
        return self._peer

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the call has ended, for whatever reason. For the gateway's thread only."""
        self._on_end = callback

    def receive(self, callback: Callable[[bytes | None], object]) -> None:
        """Ask for the next request."""
        self._put(RequestWanted(callback))

    def send(self, content: bytes, on_sent: Callable[[], object]) -> None:
        """Send one message of several; `on_sent` is called when it is on its way."""
        self._put(MessageSent(content, on_sent))

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        return max(0.0, self._until_s - self._clock())

    def finish(self, content: bytes | None) -> None:
        """End the call well, with a last message unless that is None."""
        self.status_code = "OK"
        if content is not None:
            self._put(MessageSent(content, None))
        self._put(CallFinished())

    def refuse(self, status: grpc.Status) -> None:
        """End the call with an error."""
        self.status_code = status.code.name
        self._put(CallRefused(status))

    def cancel(self) -> None:
        """End the call at once."""
        self._put(CallRefused(None))

    def _put(self, event: HttpEvent) -> None:
        with suppress(RuntimeError):  # the loop is closed: the gateway has stopped before the call
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
