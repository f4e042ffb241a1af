"""`AsyncClient`: the calls of `Client` for asyncio.

Each call runs in a thread of its own, and each stream is read by one: gRPC's own asyncio channel would need a second
implementation of every call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self

from pilotage_client.api import Client
from pilotage_client.connection import ServerOptions
from pilotage_client.job_sets import Job, JobSet

_MOST_THREADS = 64
_END = object()


class _Calls:
    """Runs the methods of an object in threads."""

    def __init__(self, target: Any, threads: ThreadPoolExecutor) -> None:
        self._target = target
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        """Return a method, or the awaitable value of a property, of the object behind."""
        if name.startswith("_"):
            raise AttributeError(name)
        if isinstance(inspect.getattr_static(type(self._target), name, None), property):
            return self._run(getattr, self._target, name)
        member = getattr(self._target, name)
        if inspect.isgeneratorfunction(member):
            return partial(self._stream, member)
        return partial(self._run, member) if inspect.ismethod(member) else member

    async def _run(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        run = partial(call, *arguments, **named)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, run)
        return AsyncHandle(result, self._threads) if isinstance(result, Job | JobSet) else result

    async def _stream(self, call: Callable[..., Iterator[Any]], /, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        items = call(*arguments, **named)
        # StopIteration must not cross from a thread into a coroutine.
        while (item := await self._run(next, items, _END)) is not _END:
            yield item


class AsyncHandle(_Calls):
    """A `Job` or `JobSet` whose methods are coroutine functions or async generators, and whose properties awaitable.

    What needs no call is as there: `id`, `job_ids`, `warnings` and `workflow`.
    """


class AsyncClient(_Calls):
    """Has each method of `Client` as a coroutine function; one that returns an iterator is an async generator.

    Use it in an `async with` block. At most 64 calls run at a time; a cancelled call ends by itself.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client, ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="pilotage-client"))

    @classmethod
    def located(cls, options: ServerOptions | None = None) -> Self:
        """Connect to the server of the options, the environment or the data folder."""
        return cls(Client.located(options))

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection; streams that are open end."""
        await self._run(self._target.close)
        self._threads.shutdown(wait=False)
