"""Concurrency of the job router: background tasks, timeouts that progress extends, and bounded parallel calls.

A slow or hanging target must not delay the others, so its work runs in a background task that may outlast the cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from pilotage.errors import PilotageError

log = structlog.get_logger()


class BackgroundTasks:
    """Runs tasks by key, one of each key at a time; a cycle waits at most `grace_s` for tasks that it started.

    A task is independent of the cycle: it continues if the cycle fails or is cancelled. The owner calls `close`. An
    unexpected error ends its task only, and is logged.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._new: set[asyncio.Task[None]] = set()
        self._errors: list[PilotageError] = []

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    def is_running(self, key: Hashable) -> bool:
        """Whether the task of this key is running."""
        return key in self._running

    def start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task, unless one of its key is running."""
        if key in self._running:
            return
        task = asyncio.get_running_loop().create_task(work())
        self._running[key] = task
        self._new.add(task)
        task.add_done_callback(partial(self._on_end, key))

    async def wait_grace(self) -> None:
        """Wait up to `grace_s` for the tasks started since the last call, and for those that they start.

        Raises the PilotageError of a task that has ended since the last call; of several, a group.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace_s
        while self._new and (left_s := until - loop.time()) > 0:
            await asyncio.wait(set(self._new), timeout=left_s)
        self._new.clear()
        await asyncio.sleep(0)  # lets older tasks run too
        self._raise_errors()

    async def wait_all(self) -> None:
        """Wait until no task is running, without a limit; raises as `wait_grace` does."""
        while self._running:
            await asyncio.wait(set(self._running.values()))
        self._new.clear()
        self._raise_errors()

    def cancel(self, key: Hashable) -> None:
        """Cancel the task of this key, if it is running."""
        if (task := self._running.get(key)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks; `wait_cancelled` waits for their ends."""
        for task in self._running.values():
            task.cancel()

    async def wait_cancelled(self) -> None:
        """Wait for the ends of cancelled tasks."""
        while ending := {task for task in self._running.values() if task.cancelling()}:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends; their errors are logged."""
        while self._running:
            self.cancel_all()
            await asyncio.wait(set(self._running.values()))
        self._new.clear()
        errors, self._errors = self._errors, []
        for error in errors:
            log.error("background task failed", reason=repr(error), exc_info=error)

    def _on_end(self, key: Hashable, task: asyncio.Task[None]) -> None:
        self._new.discard(task)
        del self._running[key]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PilotageError):
            self._errors.append(error)
        elif error is not None:
            log.error("unexpected error in background task", task=str(key), exc_info=error)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("background tasks failed", errors)


@dataclass
class _ProgressTimer:
    """A timeout that progress extends."""

    end: asyncio.Timeout
    still_s: float
    is_over: bool = False

    def extend(self) -> None:
        if not self.is_over and not self.end.expired():
            self.end.reschedule(asyncio.get_running_loop().time() + self.still_s)


_timers: ContextVar[tuple[_ProgressTimer, ...]] = ContextVar("watches", default=())


@asynccontextmanager
async def progress_timeout(still_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the block, with the tasks that it starts, makes no progress for `still_s`.

    Such blocks can be nested: progress extends all of them.
    """
    async with asyncio.timeout(still_s) as end:
        timer = _ProgressTimer(end, still_s)
        token = _timers.set((*_timers.get(), timer))
        try:
            yield
        finally:
            timer.is_over = True
            _timers.reset(token)


def report_progress() -> None:
    """Extend all enclosing progress timeouts."""
    for timer in _timers.get():
        timer.extend()


Result = TypeVar("Result")

_MAX_PARALLEL = 16


async def gather_bounded(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines, a few at a time; returns their results in order."""
    gate = asyncio.Semaphore(_MAX_PARALLEL)

    async def do(work: Coroutine[Any, Any, Result]) -> Result:
        async with gate:
            return await work

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(do(work)) for work in works]
    return [task.result() for task in tasks]
