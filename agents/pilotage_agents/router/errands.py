"""Deeds that may outlast the round that begins them, so that what is slow or hangs keeps nothing else waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any

import structlog

from pilotage.errors import PilotageError

log = structlog.get_logger()


class Errands:
    """Runs deeds by key, of each key one at a time; a round waits `grace_s` for what it began, and no longer.

    They are no part of a round: it may fail, or be cancelled, and they go on. Who has them brings them to an `end`.
    A deed that meets what nobody has foreseen fails alone: the log has that, and no round breaks off over it.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._out: dict[Hashable, asyncio.Task[None]] = {}
        self._fresh: set[asyncio.Task[None]] = set()
        self._errors: list[PilotageError] = []

    def __len__(self) -> int:
        """Return how many are out."""
        return len(self._out)

    def is_out(self, key: Hashable) -> bool:
        """Whether the deed of this key has not ended."""
        return key in self._out

    def begin(self, key: Hashable, deed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a deed, unless one of its key is out."""
        if key in self._out:
            return
        task = asyncio.get_running_loop().create_task(deed())
        self._out[key] = task
        self._fresh.add(task)
        task.add_done_callback(partial(self._ended, key))

    async def grace(self) -> None:
        """Wait a while for what was begun since the last time, and for what that begins.

        Raises the PilotageError that a deed has met, of those that have ended since the last time too: of several a
        group.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace_s
        while self._fresh and (left_s := until - loop.time()) > 0:
            await asyncio.wait(set(self._fresh), timeout=left_s)
        self._fresh.clear()
        await asyncio.sleep(0)  # those from before go on too, whatever the round has to wait for
        self._raise_errors()

    async def all_done(self) -> None:
        """Return when none is out, however long that takes; raises as `grace` does."""
        while self._out:
            await asyncio.wait(set(self._out.values()))
        self._fresh.clear()
        self._raise_errors()

    def cancel(self, key: Hashable) -> None:
        """Have the deed of this key end, if it is out."""
        if (task := self._out.get(key)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Have all end; `cancelled` tells when they have."""
        for task in self._out.values():
            task.cancel()

    async def cancelled(self) -> None:
        """Return when those have ended that were to."""
        while ending := {task for task in self._out.values() if task.cancelling()}:
            await asyncio.wait(ending)

    async def end(self) -> None:
        """Have all end, and return when they have; what they have met is logged."""
        while self._out:
            self.cancel_all()
            await asyncio.wait(set(self._out.values()))
        self._fresh.clear()
        errors, self._errors = self._errors, []
        for error in errors:
            log.error("errand failed", reason=repr(error), exc_info=error)

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        self._fresh.discard(task)
        del self._out[key]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PilotageError):
            self._errors.append(error)
        elif error is not None:
            log.error("errand met an error of the agent's own", errand=str(key), exc_info=error)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("errands failed", errors)
