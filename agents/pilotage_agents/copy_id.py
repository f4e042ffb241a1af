"""What tells a copy of an agent apart from all others: an agent that starts again in its folder is the same copy."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

from pilotage.errors import WorldError

_NAME = "copy-id"


def copy_id(folder: Path) -> str:
    """Return the id of the copy whose folder this is, made when it is wanted first; raises WorldError.

    All that start at once in a new folder, such as an agent and a dry run beside it, get the same.
    """
    path = folder / _NAME
    try:
        if not path.exists():
            _make(path)
        return path.read_text()
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(uuid4().hex)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, never replaces the id that another process made meanwhile
    finally:
        draft.unlink(missing_ok=True)
