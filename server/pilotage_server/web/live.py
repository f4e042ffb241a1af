"""Live updates: a response of server-sent events whose sources run until they end, or until the browser is gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pilotage_server.web.calls import CallFailedError
from pilotage_server.web.pages import SECURITY_HEADERS

log = structlog.get_logger()

MOST_STREAMS = 200
"""Pages with live updates at a time; more pages are shown without. Each one holds a connection and up to two calls."""

_HEADERS = {
    **SECURITY_HEADERS,
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

Emit = Callable[[str, str, str], Awaitable[None]]
"""Sends an event: its name, its content, and its id ("" = none). One without a name shows that the stream lives."""

LiveSource = Callable[[Emit], Awaitable[None]]
"""Emits events until it has nothing more to say."""


@dataclass
class StreamCount:
    """The number of streams that are open; they belong to one event loop."""

    open: int = 0
    most: int = field(default=MOST_STREAMS)


def event_text(name: str, content: str, number: str = "") -> bytes:
    """Return a server-sent event. A carriage return would end a line of it, so it becomes a newline."""
    if not name:
        return b":\n\n"
    lines = content.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = f"event: {name}\n" + (f"id: {number}\n" if number else "")
    return (head + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


class LiveResponse(Response):
    """Server-sent events of some sources; the last event is `end`, after which a browser does not come back."""

    def __init__(self, sources: Sequence[LiveSource], count: StreamCount) -> None:
        super().__init__()
        self._sources = sources
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        if self._count.open >= self._count.most:
            # 204 tells browsers not to connect again.
            await Response(status_code=204, headers=SECURITY_HEADERS)(scope, receive, send)
            return
        self._count.open += 1
        try:
            await self._send_all(receive, send)
        finally:
            self._count.open -= 1

    async def _send_all(self, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def emit(name: str, content: str, number: str) -> None:
            await send({"type": "http.response.body", "body": event_text(name, content, number), "more_body": True})

        async with asyncio.TaskGroup() as tasks:
            sources = [tasks.create_task(_run(source, emit)) for source in self._sources]
            gone = tasks.create_task(_cancel_when_gone(receive, sources))
            await asyncio.wait(sources)
            if not gone.done():
                gone.cancel()
                await emit("end", "", "")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _run(source: LiveSource, emit: Emit) -> None:
    try:
        await source(emit)
    except CallFailedError as failed:
        await emit("failed", "", "")
        log.info("live updates end", why=str(failed))


async def _cancel_when_gone(receive: Receive, tasks: Sequence[asyncio.Task[None]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    for task in tasks:
        task.cancel()


_POSITION = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")


def resumed_after(request: Request) -> tuple[int, int]:
    """Return attempt and offset of the last output that the browser has; (0, 0) = it has none."""
    found = _POSITION.fullmatch(request.headers.get("last-event-id", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)
