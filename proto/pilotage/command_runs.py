"""Commands that are run with an end to one's patience: what they print, and how nothing of them stays.

What a command reads and prints lies in memory, not in pipes: a process that it leaves behind, such as the shared
connection of ssh, holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from io import FileIO

_KILLED_WITHIN_S = 5.0
"""A killed process that is still there after so long is stuck in the kernel, as on a file server that is away."""


def in_memory() -> FileIO:
    """Return an open file without a name; raises OSError.

    A Python that was built for an old glibc cannot have it in memory: there it is in the folder for temporary files.
    """
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("pilotage"), "r+")
    with tempfile.TemporaryFile(buffering=0) as file:
        return FileIO(os.dup(file.fileno()), "r+")


def text_in(memory: FileIO) -> str:
    """Return all that is in an open file as text."""
    # From the start, wherever the processes that share its position have left it.
    return os.pread(memory.fileno(), os.fstat(memory.fileno()).st_size, 0).decode(errors="replace")


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process that has not ended, which leads a group of its own, with all that it started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_WITHIN_S):
                await process.wait()
