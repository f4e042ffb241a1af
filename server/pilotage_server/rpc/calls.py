"""One call under way: who makes it, how long it may take, and how it is answered from whatever thread.

A servicer's method is of one of two kinds. A coroutine (or an asynchronous generator, for a stream) runs in the
event loop and returns its response; it finds its `Call` where gRPC would pass a context. A hot method is a plain
function that runs in the serving thread, the one that takes all calls: it must return within microseconds, having
given the call to whoever will answer it.

    @hot
    def ReportState(self, request: ReportStateRequest, call: Call[ReportStateResponse]) -> None:
        heartbeat = heartbeat_from_wire(request)  # what it raises refuses the call
        future = self._database.submit_batch(self._reports, Report(call.identity, heartbeat))
        future.add_done_callback(call.answer_with)

Where a hot call has to wait after all, it goes on as a coroutine, from whatever thread:

        call.go_on(lambda: self._wait_for_work(call, request))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from pilotage.clock import BootClock
from pilotage_server.core.identity import Identity
from pilotage_server.rpc.refusals import refusal
from pilotage_server.rpc.tokens import VerifiedToken
from pilotage_server.rpc.wire_calls import WireCall

log = structlog.get_logger()

Response = TypeVar("Response")
Method = TypeVar("Method", bound=Callable[..., None])

_under_way: ContextVar[Call[Any]] = ContextVar("call_under_way")
_HOT = "_is_hot"


def hot(method: Method) -> Any:
    """Mark a servicer's method as a plain function that answers its call later; see this module's head."""
    setattr(method, _HOT, True)
    return method  # as Any: the generated servicers know of no such methods


def is_hot(method: Callable[..., Any]) -> bool:
    """Whether a servicer's method is marked so."""
    return getattr(method, _HOT, False)


def caller() -> Identity:
    """Return the identity that the call was made with that this coroutine serves."""
    return _under_way.get().identity


def callers_token() -> VerifiedToken:
    """Return the identity of that call and when its token ends."""
    return _under_way.get().token


@contextmanager
def idle() -> Iterator[None]:
    """Let the call that this coroutine serves, if any, not count as in flight: in this block it only waits."""
    call = _under_way.get(None)
    if call is None:
        yield
        return
    call.in_flight.discard(call)
    try:
        yield
    finally:
        call.in_flight.add(call)


class EventLoop(Protocol):
    """Where calls wait; see `loop_calls`."""

    def go_on(self, call: Call[Any], find: Callable[[], Awaitable[Any]]) -> None:
        """Answer the call, soon and in the event loop, with what `find` returns."""


class InFlight(Protocol):
    """The calls that do not merely wait; see `in_flight`."""

    def add(self, call: Call[Any]) -> None:
        """Count a call."""

    def discard(self, call: Call[Any]) -> None:
        """Count a call no longer."""


class Surroundings(NamedTuple):
    """What all calls have in common; `tells_ends` = the log tells of the end of each."""

    loop: EventLoop
    in_flight: InFlight
    clock: BootClock
    tells_ends: bool


class Visit(NamedTuple):
    """What the door knows of a call: its method, whose it is, the cause to log, when it came (boot clock)."""

    method: str
    token: VerifiedToken
    cause: str
    since_s: float


class Call(Generic[Response]):
    """One call, answered once; what its caller does not wait for any more is dropped.

    `serialize` makes the bytes of a response.
    """

    __slots__ = ("_around", "_is_answered", "_on_end", "_serialize", "is_over", "visit", "wire")

    def __init__(
        self, wire: WireCall, visit: Visit, serialize: Callable[[Response], bytes], around: Surroundings
    ) -> None:
        self.wire = wire
        self.visit = visit
        self.is_over = False
        self._serialize = serialize
        self._around = around
        self._is_answered = False
        self._on_end: Callable[[], object] | None = None
        around.in_flight.add(self)

    @property
    def identity(self) -> Identity:
        """Who makes the call."""
        return self.visit.token.identity

    @property
    def token(self) -> VerifiedToken:
        """What he makes it with."""
        return self.visit.token

    def time_remaining(self) -> float:
        """Return the seconds until the call's deadline; infinite where it has none."""
        return self.wire.time_remaining()

    def answer(self, response: Response | bytes) -> None:
        """Give the response, or what the wire has for it, from any thread."""
        assert not self._is_answered, f"{self.visit.method} has been answered before"
        content = response if isinstance(response, bytes) else self._serialize(response)
        self._is_answered = True
        self.wire.finish(content)

    def answer_with(self, future: Future[Response] | Future[bytes]) -> None:
        """Give what a future that is done holds, be it a response or an error."""
        error = future.exception()
        if error is None:
            self.answer(future.result())
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Refuse the call, from any thread: with a PilotageError as such, with any other as an incident."""
        status = refusal(self.visit.method, self.visit.cause, error)
        if not self._is_answered:  # else the log has it: there is nobody left to tell
            self._is_answered = True
            self.wire.refuse(status)

    def send(self, response: Response, hear: Callable[[], object]) -> None:
        """Give one response of several; `hear` is called, in the serving thread, when the next one may follow."""
        self.wire.send(self._serialize(response), hear)

    def finish(self) -> None:
        """End a stream of responses."""
        self._is_answered = True
        self.wire.finish(None)

    def go_on(self, find: Callable[[], Awaitable[Response | bytes]]) -> None:
        """Answer with what `find` returns, awaited in the event loop and cancelled when the caller goes."""
        self._around.loop.go_on(self, find)

    def on_end(self, act: Callable[[], object]) -> None:
        """Let `act` be called when the call is over before it was answered; at once where it is over already."""
        self._on_end = act
        if self.is_over:
            act()

    @property
    def in_flight(self) -> InFlight:
        """The calls among which this one counts while it does not merely wait."""
        return self._around.in_flight

    def ended(self) -> None:
        """Take note that the call is over, answered or not."""
        self.is_over = True
        self._around.in_flight.discard(self)
        act, self._on_end = self._on_end, None  # it may hold what holds this call: no circle is left
        if act is not None and not self._is_answered:
            act()
        if self._around.tells_ends:
            took_ms = round(1000 * (self._around.clock() - self.visit.since_s), 3)
            log.debug("call ended", method=self.visit.method, cause=self.visit.cause, took_ms=took_ms)

    def enter_context(self) -> None:
        """Make this the call that the running coroutine serves."""
        _under_way.set(self)
