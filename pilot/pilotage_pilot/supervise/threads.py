"""The threads that copy, read and remove large files, so that nothing else waits for that."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pilotage.errors import WorldError

Result = TypeVar("Result")


def run_with_threads(count: int, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return what the work returns, done in an event loop of its own with so many threads beside it.

    All of them live before it begins; raises WorldError where they cannot. Later there may be none to be had: a
    payload counts among the processes of the same user, and can use up all that he may have.
    """
    runner = asyncio.Runner()
    try:
        runner.get_loop().set_default_executor(_started(count))
        return runner.run(work())
    finally:
        # To wait for the end of those threads asyncio starts another one.
        with contextlib.suppress(RuntimeError):
            runner.close()


def _started(count: int) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(count, thread_name_prefix="files")
    all_there = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            executor.submit(all_there.wait)
    except RuntimeError as error:
        all_there.abort()
        executor.shutdown()
        raise WorldError(f"the threads of the pilot cannot be started: {error}", transient=True) from error
    all_there.wait()
    return executor
