"""The routes as ASGI applications: request, call, response.

Rules
-----
- A call is admitted and its token is checked before its body is read, as over gRPC.
- A body is bounded in size and time. A response that its reader does not take is bounded by the connection.
- A call ends when its client is gone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from pilotage.clock import BootClock
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.telemetry import TRACEPARENT, TRACESTATE
from pilotage_server.rpc.gateway.http_calls import CallFinished, CallRefused, HttpCall, MessageSent, RequestWanted
from pilotage_server.rpc.gateway.json_form import (
    bind_path,
    descriptor_of,
    method_types,
    read_body,
    read_query,
    to_json,
    to_message,
)
from pilotage_server.rpc.gateway.problems import (
    MEDIA_TYPE,
    Problem,
    new_problem,
    problem_of_error,
    problem_of_refusal,
)
from pilotage_server.rpc.gateway.routes import CallRoute, Exchange

log = structlog.get_logger()

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Limit of a JSON body; contents of files have the limits of uploads."""

BODY_TIME_S = 60.0
"""Time in which a JSON body, or the next piece of a file, has to arrive."""

CALL_MARGIN_S = 300.0
"""A call that is not answered so long after the longest wait of a long poll is given up: submissions take minutes."""

PIECE_BYTES = 256 * 1024
"""Bytes of one message of an upload."""

LARGE_BYTES = 64 * 1024
"""A larger message becomes JSON in a thread, so that other clients need not wait for it."""

_METADATA = ("authorization", TRACEPARENT, TRACESTATE)
_NO_CACHE = {"Cache-Control": "no-store"}
_EVENT_HEADERS = {**_NO_CACHE, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}

Handler = Callable[[HttpCall], object]


class _Failed(Exception):  # noqa: N818 - it is no error of the program
    """The gateway ends a call: what it answers, and gRPC's code for the counts."""

    def __init__(self, problem: Problem, code: str) -> None:
        super().__init__(problem.content["detail"])
        self.problem = problem
        self.code = code


def _invalid(where: str, why: str) -> InvalidInputError:
    return InvalidInputError(Violation(where, why))


@dataclass(frozen=True, slots=True)
class CallEndpoint:
    """An ASGI application that passes requests of a route to `handler`, and its answers back."""

    route: CallRoute
    handler: Handler
    clock: BootClock
    longest_wait_s: float
    request_type: type[Message] = field(init=False)
    response_type: type[Message] = field(init=False)

    def __post_init__(self) -> None:
        request_type, response_type = method_types(self.route)
        object.__setattr__(self, "request_type", request_type)
        object.__setattr__(self, "response_type", response_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        lasts = self.route.exchange is not Exchange.JSON
        time_s = float("inf") if lasts else self.longest_wait_s + CALL_MARGIN_S
        metadata = {name: request.headers[name] for name in _METADATA if name in request.headers}
        peer = "" if request.client is None else f"http:{request.client.host}:{request.client.port}"
        call = HttpCall(metadata, peer, self.clock() + time_s, self.clock)
        answer = _Answer(self, send)
        try:
            async with asyncio.timeout(None if lasts else time_s):
                self.handler(call)
                await self._exchange(request, call, answer)
        except _Failed as failed:
            call.end(failed.code)
            await answer.fail(failed.problem)
        except TimeoutError:
            call.end("DEADLINE_EXCEEDED")
            why = f"the call was not answered within {time_s:g} s"
            await answer.fail(new_problem(HTTPStatus.GATEWAY_TIMEOUT, why, "DEADLINE_EXCEEDED"))
        except ClientDisconnect:
            pass
        finally:
            call.end()

    async def _exchange(self, request: Request, call: HttpCall, answer: _Answer) -> None:
        """Give the call what it asks for, and write what it answers, until it has ended."""
        async with aclosing(self._messages(request, answer)) as messages:
            gone: asyncio.Task[None] | None = None
            try:
                while True:
                    event = await call.next_event()
                    match event:
                        case RequestWanted():
                            event.callback(await anext(messages, None))
                            if gone is None and self.route.exchange is not Exchange.UPLOAD:
                                # No TaskGroup: it would wrap the errors of this exchange, and this task has none.
                                gone = asyncio.create_task(_cancel_when_gone(request, call))
                        case MessageSent():
                            await answer.write(event)
                        case CallFinished():
                            await answer.finish()
                            return
                        case CallRefused(None):
                            raise ClientDisconnect
                        case CallRefused(status):
                            assert status is not None
                            await answer.fail(problem_of_refusal(status))
                            return
            finally:
                if gone is not None:
                    gone.cancel()

    async def _messages(self, request: Request, answer: _Answer) -> AsyncGenerator[bytes, None]:
        """Yield the requests of the call as bytes."""
        if self.route.exchange is Exchange.UPLOAD:
            async for piece in self._pieces(request):
                yield piece
            return
        try:
            message = await self._message(request)
        except PilotageError as error:
            raise _Failed(problem_of_error(error), "INVALID_ARGUMENT") from error
        answer.is_whole = getattr(message, "until_now", False)
        yield message.SerializeToString()

    async def _message(self, request: Request) -> Message:
        """Return the request; raises InvalidInputError, or _Failed for a body that is too large or too slow."""
        route, kind = self.route, self.request_type
        found, size = read_query(route, kind, request.query_params.multi_items()), 0
        if route.has_body:
            body = await _read(request)
            found, size = read_body(body), len(body)
        elif request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise _invalid("", f"{route.verb} takes no body; its fields are parameters of the query")
        bind_path(route, kind, found, request.path_params)
        if route.exchange is Exchange.EVENTS:
            found |= _resumed(route, request.headers.get("last-event-id"))
        if "request_id" in descriptor_of(kind).fields_by_name and not found.get("request_id"):
            found["request_id"] = request.headers.get("idempotency-key") or secrets.token_hex(16)
        if size > LARGE_BYTES:
            return await asyncio.to_thread(to_message, kind, found)
        return to_message(kind, found)

    async def _pieces(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the messages of an upload; the first one has checksum and size."""
        text = request.headers.get("content-length", "")
        if not text.isdigit():
            why = "an upload needs the header Content-Length"
            raise _Failed(new_problem(HTTPStatus.LENGTH_REQUIRED, why, "LENGTH_REQUIRED"), "INVALID_ARGUMENT")
        make: Any = self.request_type
        head = {"checksum": request.path_params["checksum"], "size": int(text)}
        async with aclosing(_chunks(request)) as chunks:
            first = await anext(chunks, b"")
            yield make(**head, content=first).SerializeToString()
            async for chunk in chunks:
                yield make(content=chunk).SerializeToString()


async def _cancel_when_gone(request: Request, call: HttpCall) -> None:
    """Cancel the call when its client is gone. The body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call.cancel()


async def _chunks(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces of at most `PIECE_BYTES`; raises _Failed if the next one does not arrive in time."""
    async with aclosing(request.stream()) as stream:
        while True:
            try:
                async with asyncio.timeout(BODY_TIME_S):
                    chunk = await anext(stream, None)
            except TimeoutError:
                why = f"nothing more of the body has arrived for {BODY_TIME_S:g} s"
                problem = new_problem(HTTPStatus.REQUEST_TIMEOUT, why, "REQUEST_TIMEOUT", {"Connection": "close"})
                raise _Failed(problem, "DEADLINE_EXCEEDED") from None
            if chunk is None:
                return
            for start in range(0, len(chunk), PIECE_BYTES):
                yield chunk[start : start + PIECE_BYTES]


async def _read(request: Request) -> bytes:
    """Return the body as a whole; raises _Failed if it is too large or too slow."""
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_TIME_S), aclosing(_chunks(request)) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > MAX_BODY_BYTES:
                    why = f"the body has more than {MAX_BODY_BYTES} bytes"
                    headers = {"Connection": "close"}
                    problem = new_problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why, "BODY_TOO_LARGE", headers)
                    raise _Failed(problem, "INVALID_ARGUMENT")
    except TimeoutError:
        why = f"the body did not arrive within {BODY_TIME_S:g} s"
        problem = new_problem(HTTPStatus.REQUEST_TIMEOUT, why, "REQUEST_TIMEOUT", {"Connection": "close"})
        raise _Failed(problem, "DEADLINE_EXCEEDED") from None
    return bytes(content)


def _resumed(route: CallRoute, last_event: str | None) -> dict[str, Any]:
    """Return the fields that resume a stream behind an event: its id is POSITION, or ATTEMPT-OFFSET of output."""
    if not last_event:
        return {}
    parts = last_event.split("-")
    if not all(part.isascii() and part.isdigit() for part in parts):
        parts = []
    match route.name, parts:
        case "WatchEvents", [position]:
            return {"after_position": position}
        case "FollowOutput", [attempt, offset]:
            return {"attempt": attempt, "offset": offset}
        case _:
            raise _invalid("", f"Last-Event-ID {last_event!r} is no id of an event of this stream")


def _event(message: Any, route: CallRoute) -> bytes:
    """Return a message as a server-sent event."""
    if route.name == "WatchEvents":
        number = str(message.position)
    else:
        number = f"{message.attempt}-{message.offset + len(message.content)}"
    return f"id: {number}\ndata: {json.dumps(to_json(message), ensure_ascii=False)}\n\n".encode()


class _Answer:
    """Writes the answer of one request."""

    def __init__(self, endpoint: CallEndpoint, send: Send) -> None:
        self._endpoint = endpoint
        self._send = send
        self._has_begun = False
        self.is_whole = False
        """Whether a stream of events that ends now has all that was asked for; else it was interrupted."""

    async def write(self, event: MessageSent) -> None:
        """Write a message of the call."""
        route, kind = self._endpoint.route, self._endpoint.response_type
        if route.exchange in (Exchange.JSON, Exchange.UPLOAD):
            content = await self._json(event.content)
            await self._begin(HTTPStatus.OK, {**_NO_CACHE, "Content-Type": "application/json"}, len(content))
            await self._more(content, last=True)
            return
        message: Any = kind.FromString(event.content)
        if route.exchange is Exchange.EVENTS:
            await self._begin(HTTPStatus.OK, _EVENT_HEADERS)
            await self._more(_event(message, route))
            self.is_whole = self.is_whole or getattr(message, "over", False)
        else:
            await self._begin(HTTPStatus.OK, {**_NO_CACHE, "Content-Type": "application/octet-stream"})
            await self._more(message.content)
        if event.on_sent is not None:
            event.on_sent()

    async def _json(self, content: bytes) -> bytes:
        make = _json_text
        if len(content) > LARGE_BYTES:
            return await asyncio.to_thread(make, self._endpoint, content)
        return make(self._endpoint, content)

    async def finish(self) -> None:
        """End the answer to a call that has ended well."""
        match self._endpoint.route.exchange:
            case Exchange.EVENTS:
                await self._begin(HTTPStatus.OK, _EVENT_HEADERS)
                await self._more(b"event: end\ndata: {}\n\n" if self.is_whole else b"", last=True)
            case Exchange.DOWNLOAD:
                await self._begin(HTTPStatus.OK, {**_NO_CACHE, "Content-Type": "application/octet-stream"})
                await self._more(b"", last=True)
            case Exchange.JSON | Exchange.UPLOAD:
                pass

    async def fail(self, problem: Problem) -> None:
        """Write why the call failed: as the answer, or as the last event of a stream.

        Raises ConnectionError within the content of a file: the broken connection shows that it is not whole.
        """
        content = json.dumps(problem.content, ensure_ascii=False).encode()
        if not self._has_begun:
            headers = {**_NO_CACHE, **problem.headers, "Content-Type": MEDIA_TYPE}
            await self._begin(problem.status, headers, len(content))
            await self._more(content, last=True)
        elif self._endpoint.route.exchange is Exchange.EVENTS:
            await self._more(b"event: error\ndata: " + content + b"\n\n", last=True)
        else:
            raise ConnectionError(problem.content["detail"])

    async def _begin(self, status: HTTPStatus, headers: Mapping[str, str], length: int | None = None) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        more = {} if length is None else {"Content-Length": str(length)}
        pairs = [(name.lower().encode(), value.encode()) for name, value in {**headers, **more}.items()]
        await self._send({"type": "http.response.start", "status": int(status), "headers": pairs})

    async def _more(self, content: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": not last})


def _json_text(endpoint: CallEndpoint, content: bytes) -> bytes:
    found = to_json(endpoint.response_type.FromString(content))
    if endpoint.route.only:
        (found,) = found[endpoint.route.only]
    return json.dumps(found, ensure_ascii=False).encode()
