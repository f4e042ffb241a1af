"""From other threads into the event loop: news, and calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from pilotage.telemetry import cause_bound
from pilotage_server.rpc.calls import Call, idle


def in_event_loop(hear: Callable[..., None]) -> Callable[..., None]:
    """Return what lets `hear` be called soon in the running event loop, from whatever thread and without waiting."""
    loop = asyncio.get_running_loop()

    def hand_over(*news: Any) -> None:
        loop.call_soon_threadsafe(hear, *news)

    return hand_over


class LoopCalls:
    """Calls that are served by coroutines in the running event loop: a task each, cancelled when the caller goes."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    def go_on(self, call: Call[Any], find: Callable[[], Awaitable[Any]]) -> None:
        """Answer the call with what `find` returns."""

        async def act() -> None:
            call.answer(await find())

        self._loop.call_soon_threadsafe(self._begin, call, act)

    def stream(self, call: Call[Any], messages: Callable[[], AsyncIterator[Any]]) -> None:
        """Answer the call with all that `messages` yields, each asked for when the one before is on its way."""

        async def act() -> None:
            async with aclosing(messages()) as responses:  # type: ignore[type-var]
                async for response in responses:
                    await self._send(call, response)
            call.finish()

        self._loop.call_soon_threadsafe(self._begin, call, act)

    async def _send(self, call: Call[Any], response: Any) -> None:
        sent = asyncio.Event()
        call.send(response, partial(self._loop.call_soon_threadsafe, sent.set))
        with idle():
            await sent.wait()

    async def requests(self, call: Call[Any], parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        """Yield what the caller sends, each message asked for when the one before was taken."""
        received: asyncio.Queue[bytes | None] = asyncio.Queue()
        while True:
            call.wire.receive(lambda content: self._loop.call_soon_threadsafe(received.put_nowait, content))
            with idle():
                content = await received.get()
            if content is None:
                return
            yield parse(content)

    def _begin(self, call: Call[Any], act: Callable[[], Awaitable[None]]) -> None:
        if not call.is_over:
            task = self._tasks.create_task(_served(call, act))
            call.on_end(partial(self._loop.call_soon_threadsafe, task.cancel))


async def _served(call: Call[Any], act: Callable[[], Awaitable[None]]) -> None:
    call.enter_context()
    with cause_bound(call.visit.cause):
        try:
            await act()
        except Exception as error:  # the outermost round of a call: nothing unexpected leaves as it is
            call.fail(error)
