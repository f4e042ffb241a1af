"""`AsyncClient`: the calls of `Client` for asyncio.

Each call runs in a thread of its own, and each stream is read by one: gRPC's own asyncio channel would need a second
implementation of every call. `async_client.pyi` has the types, which `make reference` derives from those of `Client`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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

    __slots__ = ("_target", "_threads")

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
        match result:
            case Job():
                return AsyncJob(result, self._threads)
            case JobSet():
                return AsyncJobSet(result, self._threads)
            case Client():
                return AsyncClient(result)
            case _:
                return result

    async def _stream(self, call: Callable[..., Iterator[Any]], /, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        items = call(*arguments, **named)
        # StopIteration must not cross from a thread into a coroutine.
        while (item := await self._run(next, items, _END)) is not _END:
            yield item


class AsyncJob(_Calls):
    """A `Job` whose methods are coroutine functions, and whose property `status` is awaitable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id}>"


class AsyncJobSet(_Calls, Sequence[AsyncJob]):
    """A `JobSet` whose methods are coroutine functions or async generators, and whose properties are awaitable.

    What needs no call is as there: `job_ids`, `warnings`, `workflow`, and the sequence of its jobs.
    """

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        """Return the job at this place, or a set of those in a slice."""
        kind = AsyncJobSet if isinstance(index, slice) else AsyncJob
        return kind(self._target[index], self._threads)

    def __len__(self) -> int:
        return len(self._target)

    def __repr__(self) -> str:
        return repr(self._target).replace("JobSet", "AsyncJobSet")


class AsyncClient(_Calls):
    """Has each method of `Client` as a coroutine function; one that returns an iterator is an async generator.

    Use it in an `async with` block. At most 64 calls run at a time; a cancelled call ends by itself.
    """

    __slots__ = ()

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
