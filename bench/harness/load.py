"""Load on a server: prepared requests are sent as raw bytes, so that the client costs little."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import grpc

from pilotage.clock import boot_time_s
from pilotage.rpc.channel import SHARED_OPTIONS

DEADLINE_S = 60.0
"""A call that takes longer fails the bench."""

Metadata = tuple[tuple[str, str], ...]

Caller = Callable[[str], Metadata]
"""Returns the metadata of a call of a method that is made now."""


class Request(NamedTuple):
    """A serialised request and its caller, whose metadata may depend on method and time."""

    body: bytes
    metadata: Metadata | Caller = ()


class Answer(NamedTuple):
    """A serialised answer with its request, when this was due, and when the answer came (boot clock)."""

    request: Request
    body: bytes
    due_s: float
    received_s: float

    @property
    def latency_s(self) -> float:
        """The time in which the answer came."""
        return self.received_s - self.due_s


Follow = Callable[[Answer], Request | None]
"""Returns the request that follows an answer; None = none."""


@dataclass(slots=True)
class Run:
    """The results of calls, in the order of the answers.

    `refused` counts the calls rejected by overload protection; `server_cpu_s` is the server's CPU time for all, and
    `profile` says which threads of the server used it; both only if they were measured.
    """

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0
    server_cpu_s: float = 0.0
    profile: str = ""

    @property
    def calls_per_s(self) -> float:
        """The answered calls a second."""
        return len(self.answers) / self.seconds

    @property
    def cpu_us(self) -> float:
        """The server's CPU time of one call, in microseconds."""
        return 1e6 * self.server_cpu_s / len(self.answers)

    @property
    def median_ms(self) -> float:
        """The median latency in ms."""
        return 1000 * statistics.median(answer.latency_s for answer in self.answers)

    def percentile_ms(self, percent: float) -> float:
        """Return this percentile of the latency in ms."""
        ordered = sorted(answer.latency_s for answer in self.answers)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median_rate(runs: Iterable[Run]) -> float:
    """Return the median of the runs' calls a second."""
    return statistics.median(run.calls_per_s for run in runs)


def median_cpu_us(runs: Iterable[Run]) -> float:
    """Return the median of the server's CPU time of a call, in microseconds."""
    return statistics.median(run.cpu_us for run in runs)


class Method:
    """A unary method of one connection."""

    def __init__(self, path: str, callable_: Any) -> None:
        self._path = path
        self._callable = callable_

    def future(self, request: Request, timeout_s: float) -> Any:
        """Make a call and return its future."""
        metadata = request.metadata
        return self._callable.future(
            request.body, timeout=timeout_s, metadata=metadata(self._path) if callable(metadata) else metadata
        )


class Line:
    """A connection to one server for serialised calls."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        """Open the connection; no credentials = plain text."""
        options = [*SHARED_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)

    def method(self, path: str) -> Method:
        """Return a unary method, such as /pilotage.v1.MatcherService/RequestJobs."""
        return Method(path, self._channel.unary_unary(path))

    def close(self) -> None:
        """Close the connection, which cancels pending calls."""
        self._channel.close()


def freeze_objects() -> None:
    """Keep all present objects out of later collections of garbage: one of them all would take longer than any call."""
    gc.collect()
    gc.freeze()


class _Calls:
    """Pending calls and the results of finished ones; answers arrive in a thread of gRPC."""

    def __init__(self, method: Any) -> None:
        self.run = Run()
        self._method = method
        self._began_s = boot_time_s()
        self._pending = 0
        self._change = threading.Condition()
        self._failure: Exception | None = None

    def send(self, request: Request, due_s: float, follow: Follow) -> None:
        with self._change:
            self._pending += 1
        call = self._method.future(request, DEADLINE_S)
        call.add_done_callback(partial(self._over, request, due_s, follow))

    def _over(self, request: Request, due_s: float, follow: Follow, call: Any) -> None:
        now_s = boot_time_s()
        after: Request | None = None
        if call.code() is grpc.StatusCode.OK:
            answer = Answer(request, call.result(), due_s, now_s)
            self.run.answers.append(answer)
            after = follow(answer)
        elif call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self.run.refused += 1
        else:
            self._failure = self._failure or call.exception()
        if after is not None:
            self.send(after, now_s, follow)
        with self._change:
            self._pending -= 1
            if not self._pending:
                self._change.notify()

    def finished(self) -> Run:
        """Wait for all calls; raises grpc.RpcError if one has failed other than by overload."""
        with self._change:
            self._change.wait_for(lambda: not self._pending)
        self.run.seconds = boot_time_s() - self._began_s
        if self._failure is not None:
            raise self._failure
        return self.run


def run_conversations(method: Any, first: Iterable[Request], follow: Follow) -> Run:
    """Make calls in parallel; `follow` returns the next call after each answer, until it returns None."""
    calls = _Calls(method)
    for request in first:
        calls.send(request, boot_time_s(), follow)
    return calls.finished()


def closed_loop(method: Any, requests: Iterable[Request], outstanding: int) -> Run:
    """Make all calls with a constant number of pending ones: each answer is followed by the next request."""
    left = iter(requests)
    one_at_a_time = threading.Lock()

    def follow(_answer: Answer) -> Request | None:
        with one_at_a_time:
            return next(left, None)

    return run_conversations(method, list(islice(left, outstanding)), follow)


def steady_load(method: Any, requests: Iterable[Request], calls_per_s: float) -> Run:
    """Make all calls at a steady rate, whether answers arrive or not; latencies count from the due times."""
    freeze_objects()
    calls = _Calls(method)
    began_s = boot_time_s()
    for number, request in zip(count(), requests, strict=False):
        due_s = began_s + number / calls_per_s
        if (early_s := due_s - boot_time_s()) > 0:
            time.sleep(early_s)
        calls.send(request, due_s, lambda _: None)
    return calls.finished()


def for_seconds(requests: Iterable[Request], seconds: float) -> Iterator[Request]:
    """Yield requests for some seconds."""
    end_s = boot_time_s() + seconds
    for request in requests:
        if boot_time_s() >= end_s:
            return
        yield request
