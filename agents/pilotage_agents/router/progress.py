"""Waits that last as long as something moves: a large file may take its time, one that stands still may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class _Watch:
    """A wait that is put off whenever something moves."""

    end: asyncio.Timeout
    still_s: float
    is_over: bool = False

    def moved(self) -> None:
        if not self.is_over and not self.end.expired():
            self.end.reschedule(asyncio.get_running_loop().time() + self.still_s)


_watches: ContextVar[tuple[_Watch, ...]] = ContextVar("watches", default=())


@asynccontextmanager
async def while_it_moves(still_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError when nothing in the block, or in the tasks that it starts, has moved for `still_s`.

    Such waits may lie in one another: what moves moves for all of them.
    """
    async with asyncio.timeout(still_s) as end:
        watch = _Watch(end, still_s)
        token = _watches.set((*_watches.get(), watch))
        try:
            yield
        finally:
            watch.is_over = True
            _watches.reset(token)


def it_moves() -> None:
    """Say to all who wait above that something has moved."""
    for watch in _watches.get():
        watch.moved()
