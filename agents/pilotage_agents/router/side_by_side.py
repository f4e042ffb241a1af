"""Things that are done at the same time, but not all of a thousand at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

_AT_A_TIME = 16


async def side_by_side(deeds: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Do all, some at a time; returns what they return, in order."""
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def do(deed: Coroutine[Any, Any, Result]) -> Result:
        async with gate:
            return await deed

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(do(deed)) for deed in deeds]
    return [task.result() for task in tasks]
