"""TCP proxies between the parties and the servers, which can cut, stall and delay what passes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any, TypeVar

_PIECE = 1 << 16
_DELAY_S = 1.0

Result = TypeVar("Result")


class Weather(Enum):
    """What a proxy does: a cut breaks and refuses connections, a stall keeps them open and silent."""

    FAIR = auto()
    CUT = auto()
    STALL = auto()
    DELAY = auto()


class LoopThread:
    """An event loop in a thread of its own, for the proxies."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        """Stop listening, end all connections and close the loop."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Proxy:
    """Forwards connections at `address` to `target`, both "host:port"."""

    def __init__(self, loop: LoopThread, target: str) -> None:
        self._loop = loop
        self._target = target
        self._weather = Weather.FAIR
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[Any]] = set()
        self.address = loop.run(self._listen())

    def set_weather(self, weather: Weather) -> None:
        """Treat present and new connections in this way from now on."""
        self._loop.run(self._set(weather))

    async def _listen(self) -> str:
        server = await asyncio.start_server(self._serve, "127.0.0.1")
        self._serving = asyncio.create_task(server.serve_forever())  # closes its socket when cancelled
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _set(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()
        if weather is Weather.CUT:
            for connection in self._connections:
                connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._weather is not Weather.CUT:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        ways = [asyncio.ensure_future(self._copy(*way)) for way in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE):
            while self._weather is Weather.STALL:
                await self._changed.wait()
            if self._weather is Weather.DELAY:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _DELAY_S)
            writer.write(piece)
            await writer.drain()
