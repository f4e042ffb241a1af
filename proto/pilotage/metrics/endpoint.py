"""The HTTP endpoint for operators: /metrics for Prometheus, and the health checks /healthz and /readyz.

It has threads of its own, so that it answers while the event loop is busy. It needs no token: nothing here names an
owner or a job, and the address is chosen by the operators.
"""

from __future__ import annotations

import platform
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from pilotage.errors import WorldError
from pilotage.metrics.table import BUILD_INFO, READY, MetricDefinition, MetricKind
from pilotage.metrics.values import Observations, Sample, Source

log = structlog.get_logger()

MAX_CONNECTIONS = 16
"""More connections at a time are closed at once: each has a thread."""

CONNECTION_TIMEOUT_S = 5.0
"""A client that sends or takes nothing for this time is cut off."""


class Exposition:
    """What the endpoint serves: samples of `sources`, and whether the process is ready.

    `build` is the kind of build. `fault` returns in one line why the process does not do its work now, "" = it does.
    """

    def __init__(self, build: str, fault: Callable[[], str]) -> None:
        self.fault = fault
        self.sources: list[Source] = [self._process]
        self._build = (version("pilotage"), build, platform.python_version())
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all samples; `prometheus_client` calls it."""
        families: dict[str, Metric] = {}
        for source in tuple(self.sources):
            for metric, labels, value in source():
                _add(families.setdefault(metric.name, _family(metric)), labels, value)
        yield from families.values()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format that the client accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _process(self) -> Iterable[Sample]:
        return [Sample(BUILD_INFO, self._build, 1), Sample(READY, (), float(not self.fault()))]


def _family(metric: MetricDefinition) -> Metric:
    match metric.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Any, labels: tuple[str, ...], value: float | Observations) -> None:
    if not isinstance(value, Observations):
        family.add_metric(labels, value)
        return
    names = [*map(floatToGoString, value.bounds), "+Inf"]
    counts = accumulate(value.counts[:])
    family.add_metric(labels, buckets=list(zip(names, counts, strict=True)), sum_value=value.sum)


class _Handler(BaseHTTPRequestHandler):
    timeout = CONNECTION_TIMEOUT_S
    server_version, sys_version = "pilotage", ""
    exposition: Exposition

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, *self.exposition.render(self.headers.get("Accept", "")))
        elif path == "/healthz":
            self._answer_line(HTTPStatus.OK, "ok")
        elif path == "/readyz":
            fault = self.exposition.fault()
            self._answer_line(HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK, fault or "ok")
        else:
            self._answer_line(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    def _answer_line(self, status: HTTPStatus, line: str) -> None:
        self._answer(status, f"{' '.join(line.split())}\n".encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log no request: there is one every few seconds."""


class _EndpointServer(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], exposition: Exposition) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, type("_BoundHandler", (_Handler,), {"exposition": exposition}))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # else the client is gone
            log.error("request for metrics failed", client=str(client_address), exc_info=error)


@contextmanager
def serving(address: tuple[str, int] | None, exposition: Exposition) -> Iterator[str]:
    """Serve at this address, host and port, within the block; yields HOST:PORT, "" = None was given.

    Port 0 = any free one. Raises WorldError if the address cannot be used.
    """
    if address is None:
        yield ""
        return
    try:
        server = _EndpointServer(address, exposition)
    except OSError as error:
        where = f"{address[0]}:{address[1]} (metrics_listen)"
        raise WorldError(f"cannot listen at {where}: {error.strerror or error}", transient=False) from error
    host, port = server.server_address[:2]
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        shown = f"[{host!s}]" if ":" in str(host) else host
        yield f"{shown!s}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
