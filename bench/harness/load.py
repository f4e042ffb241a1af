"""The load: prepared requests sent as raw bytes by one thread, so that the server and not its caller is measured."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import grpc

from pilotage.channel import SHARED_OPTIONS

DEADLINE_S = 60.0
"""A call that takes longer is a failure of the bench."""

Metadata = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """A request as it goes over the wire, and what tells who makes it."""

    body: bytes
    metadata: Metadata = ()


class Answer(NamedTuple):
    """An answer as it came, to what, and after how long."""

    request: Request
    body: bytes
    latency_s: float


@dataclass(slots=True)
class Run:
    """What came of calls, in the order of the answers.

    `refused` = so many were turned away as too many; `server_cpu_s` is the CPU time that all took the server.
    """

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0
    server_cpu_s: float = 0.0

    @property
    def calls_per_s(self) -> float:
        """How many calls were answered in a second."""
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
        """Return the latency that so many percent of the calls did not exceed, in ms."""
        ordered = sorted(answer.latency_s for answer in self.answers)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median_rate(runs: Iterable[Run]) -> float:
    """Return the median of the runs' calls a second."""
    return statistics.median(run.calls_per_s for run in runs)


def median_cpu_us(runs: Iterable[Run]) -> float:
    """Return the median of the server's CPU time of a call, in microseconds."""
    return statistics.median(run.cpu_us for run in runs)


class Line:
    """A connection to one server; calls go over it without being understood."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [*SHARED_OPTIONS, ("grpc.use_local_subchannel_pool", 1)])

    def method(self, path: str) -> Any:
        """Return the callable of a unary method, such as /pilotage.v1.MatcherService/RequestJobs."""
        return self._channel.unary_unary(path)

    def close(self) -> None:
        """End the connection and all calls that are under way."""
        self._channel.close()


class _Calls:
    """Calls under way, and what came of those that are over; answers come on gRPC's own thread."""

    def __init__(self, method: Any) -> None:
        self.run = Run()
        self._method = method
        self._under_way = 0
        self._change = threading.Condition()
        self._failure: Exception | None = None

    def send(self, request: Request, began_s: float, then: Callable[[], None] | None = None) -> None:
        with self._change:
            self._under_way += 1
        call = self._method.future(request.body, timeout=DEADLINE_S, metadata=request.metadata)
        call.add_done_callback(partial(self._over, request, began_s, then))

    def _over(self, request: Request, began_s: float, then: Callable[[], None] | None, call: Any) -> None:
        latency_s = time.perf_counter() - began_s
        failure = None
        if call.code() is grpc.StatusCode.OK:
            self.run.answers.append(Answer(request, call.result(), latency_s))
        elif call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self.run.refused += 1
        else:
            failure = call.exception()
        if then is not None and failure is None:
            then()
        with self._change:
            self._failure = self._failure or failure
            self._under_way -= 1
            if not self._under_way:
                self._change.notify()

    def finished(self) -> Run:
        """Return what came of all; raises grpc.RpcError when one has failed, but for those refused."""
        with self._change:
            self._change.wait_for(lambda: not self._under_way)
        if self._failure is not None:
            raise self._failure
        return self.run


def closed_loop(method: Any, requests: Iterable[Request], outstanding: int) -> Run:
    """Make all calls with always so many under way: each answer is followed by the next request."""
    calls = _Calls(method)
    left = iter(requests)
    lock = threading.Lock()

    def send_next() -> None:
        with lock:
            request = next(left, None)
        if request is not None:
            calls.send(request, time.perf_counter(), send_next)

    began_s = time.perf_counter()
    for _ in range(outstanding):
        send_next()
    run = calls.finished()
    run.seconds = time.perf_counter() - began_s
    return run


def steady_load(method: Any, requests: Iterable[Request], calls_per_s: float) -> Run:
    """Make all calls at a steady rate, whether answers come or not; latencies count from when each was due."""
    calls = _Calls(method)
    began_s = time.perf_counter()
    for number, request in zip(count(), requests, strict=False):
        due_s = began_s + number / calls_per_s
        if (early_s := due_s - time.perf_counter()) > 0:
            time.sleep(early_s)
        calls.send(request, due_s)
    run = calls.finished()
    run.seconds = time.perf_counter() - began_s
    return run


def for_seconds(requests: Iterable[Request], seconds: float) -> Iterator[Request]:
    """Yield requests until the time is over."""
    end_s = time.perf_counter() + seconds
    for request in requests:
        if time.perf_counter() >= end_s:
            return
        yield request
