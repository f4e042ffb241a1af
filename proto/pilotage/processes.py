"""Exclusive use of a folder by one process, and child processes with a deadline.

The input and output of a child are in memory, not in pipes: a process that it leaves behind, such as the shared
connection of ssh, then delays no reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from pilotage.errors import StateConflictError, WorldError

_LOCK_NAME = "lock"


@contextmanager
def exclusive_folder(folder: Path, who: str) -> Iterator[None]:
    """Create `folder` if needed and lock it while the block runs; the lock ends with the process, however it ends.

    Raises
    ------
    StateConflictError
        When another process holds the lock; the text names that process as `who`.
    WorldError
        When the folder cannot be created or written.
    """
    path = folder / _LOCK_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorldError(f"{folder} cannot be used: {error.strerror}", transient=False) from error
    try:
        _lock(handle, folder, who)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, who: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).decode(errors="replace") or "not known"
        raise StateConflictError(f"{who} works with {folder} already (process {holder})") from None
    except OSError as error:
        raise WorldError(f"{folder} cannot be used: {error.strerror}", transient=False) from error


_KILL_TIMEOUT_S = 5.0
"""A killed process that still exists after this time is stuck in the kernel, as on a dead file server."""


def memory_file() -> FileIO:
    """Return an open file without a name, in memory; raises OSError.

    A Python built for an old glibc has no memory files: there it is in the folder for temporary files.
    """
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("pilotage"), "r+")
    with tempfile.TemporaryFile(buffering=0) as file:
        return FileIO(os.dup(file.fileno()), "r+")


def file_text(memory: FileIO) -> str:
    """Return the whole content of an open file as text."""
    # From the start: processes that share the file have moved its position.
    return os.pread(memory.fileno(), os.fstat(memory.fileno()).st_size, 0).decode(errors="replace")


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a process that leads its own group, with all that it started, unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await process.wait()
