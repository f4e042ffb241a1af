"""The HTTP server of the gateway: Starlette and uvicorn in a thread and an event loop of their own.

The calls themselves run where those over gRPC run. This loop reads and writes HTTP and JSON only, so that it delays
no other call by more than Python's lock does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from pilotage.clock import BootClock
from pilotage.telemetry import LibraryWarnings
from pilotage_server.rpc.gateway.endpoints import CallEndpoint
from pilotage_server.rpc.gateway.http_calls import HttpCall
from pilotage_server.rpc.gateway.openapi import document
from pilotage_server.rpc.gateway.problems import MEDIA_TYPE, new_problem
from pilotage_server.rpc.gateway.routes import BODY_VERBS, ROUTES

MAX_HEAD_BYTES = 64 * 1024
"""Limit of the first line and the headers of a request."""

STALLED_READER_S = 60.0
"""A connection whose client takes nothing of its answer for this time is closed."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of the HTTP server: times in seconds, and the number of its connections.

    `head_s` = time for the head of a request; `idle_s` = without a request; `grace_s` = for answers after a stop.
    """

    head_s: float
    idle_s: float
    grace_s: float
    connections: int
    longest_wait_s: float


class CallTable:
    """The entry points of the calls, by method; takes the place of gRPC's acceptor in a dispatcher."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[HttpCall], object]] = {}

    def add(self, method: str, handler: Callable[[Any], object]) -> None:
        """Register a method by its full name."""
        self.handlers[method] = handler

    def start(self) -> None:
        """Do nothing: `Gateway.start` begins to take requests."""


NotFoundPage = Callable[[Request], Response]
PageRoutes = Callable[
    [Mapping[str, Callable[[Any], object]], BootClock, Callable[[], bool]], tuple[Sequence[BaseRoute], NotFoundPage]
]
"""Returns the routes of pages, which make the calls of a table by their full names, and the page for other paths.

The last argument = it is open.
"""


class Gateway:
    """Serves the calls of a table over HTTP, on a socket that listens.

    No `tls` = plain text, no `pages` = calls only.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        limits: GatewayLimits,
        origins: Sequence[str],
        *,
        describes: bool,
        pages: PageRoutes | None = None,
    ) -> None:
        self.calls = CallTable()
        self._listener = listener
        self._tls = tls
        self._limits = limits
        self._origins = origins
        self._describes = describes
        self._pages = pages
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, clock: BootClock) -> None:
        """Take requests from now on, in a thread; the table is complete."""
        _log_warnings()
        limits = self._limits
        config = uvicorn.Config(
            self._application(clock),
            http=partial(_BoundedConnection, limits.head_s),  # type: ignore[arg-type] # any callable will do
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # any local user could claim to be another address
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=round(limits.idle_s),
            timeout_graceful_shutdown=max(1, round(limits.grace_s)),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        config.ssl = self._tls
        self._server = uvicorn.Server(config)
        serve = partial(self._server.run, sockets=[self._listener])
        self._thread = threading.Thread(target=serve, name="http", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Take no more connections, and wait until the answers under way have ended, or the time of grace is over."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            await asyncio.to_thread(self._thread.join)

    def _is_open(self) -> bool:
        return self._server is None or not self._server.should_exit

    def _application(self, clock: BootClock) -> Starlette:
        routes: list[BaseRoute] = []
        not_found: NotFoundPage | None = None
        for route in ROUTES:
            endpoint = CallEndpoint(route, self.calls.handlers[route.method], clock, self._limits.longest_wait_s)
            routes.append(Route(route.path, endpoint, methods=[route.verb]))
        if self._describes:
            content = json.dumps(document(), ensure_ascii=False).encode()

            async def describe(_request: Request) -> Response:
                return Response(content, media_type="application/json")

            routes.append(Route("/openapi.json", describe))
        if self._pages is not None:
            pages, not_found = self._pages(self.calls.handlers, clock, self._is_open)
            routes += pages
        return Starlette(
            routes=routes,
            middleware=[_cross_origin(self._origins)] if self._origins else [],
            exception_handlers={HTTPException: partial(_not_routed, not_found)},
        )


def _cross_origin(origins: Sequence[str]) -> Middleware:
    """Return the middleware that lets pages of these origins call; they send their token by themselves."""
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "DELETE", *sorted(BODY_VERBS)],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "traceparent"],
        expose_headers=["Retry-After"],
    )


async def _not_routed(not_found: NotFoundPage | None, request: Request, error: HTTPException) -> Response:
    """Answer a request that no route takes: for browsers, which ask for HTML, with a page."""
    status = HTTPStatus(error.status_code)
    if not_found and status is HTTPStatus.NOT_FOUND and "text/html" in request.headers.get("accept", ""):
        return not_found(request)
    why = f"there is no {request.method} {request.url.path}; the paths are in docs/reference/http.md"
    # Starlette names the verbs of the first route only.
    partial_matches = [each for each in request.app.routes if each.matches(request.scope)[0] is Match.PARTIAL]
    verbs = sorted({verb for each in partial_matches for verb in getattr(each, "methods", ())})
    problem = new_problem(status, why, status.name, {"Allow": ", ".join(verbs)} if verbs else {})
    return Response(json.dumps(problem.content), status, problem.headers, MEDIA_TYPE)


def _log_warnings() -> None:
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [LibraryWarnings("warning of the HTTP server")], False


class _Timer:
    """A timer of an event loop that runs at most once at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time_s: float, act: Callable[[], object]) -> None:
        self._loop = loop
        self._time_s = time_s
        self._act = act
        self._handle: TimerHandle | None = None

    def start(self) -> None:
        """Start the timer unless it runs."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._time_s, self._fire)

    def stop(self) -> None:
        """Stop the timer if it runs."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._act()


class _BoundedConnection(H11Protocol):
    """A connection that is closed if a request's head does not arrive in time, or its client takes no answer."""

    def __init__(self, head_s: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._head_timer = _Timer(self.loop, head_s, self._end_without_request)
        self._write_timer = _Timer(self.loop, STALLED_READER_S, lambda: self.transport.abort())

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as the base class
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_timer.stop()
        self._write_timer.stop()

    def _watch_head(self) -> None:
        if self._has_request():
            self._head_timer.stop()
        else:
            self._head_timer.start()

    def _end_without_request(self) -> None:
        if not self._has_request():
            self.transport.abort()

    def _has_request(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete
