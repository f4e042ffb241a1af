"""A folder that one process at a time works with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.errors import StateConflictError, WorldError

_LOCK_NAME = "lock"


@contextmanager
def sole_owner(folder: Path, who: str) -> Iterator[None]:
    """Make `folder` if need be and hold it while the block runs; the lock ends with the process, however it ends.

    Raises
    ------
    StateConflictError
        When another process holds it; the text names that process as `who`.
    WorldError
        When the folder cannot be made or written.
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
