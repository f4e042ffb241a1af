"""How the output of a payload travels: what is small in the report itself, what is large before it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from pilotage.job_output import Bounds, Found, open_regular
from pilotage_pilot.core.jobs import StoredFile

INLINE_BYTES = 64 << 10
"""Files up to this size travel in the report itself."""

_INLINE_SUM_BYTES = 1 << 20


def store_small(found: Found, bounds: Bounds, cut: Iterable[str]) -> tuple[tuple[StoredFile, ...], dict[str, Path]]:
    """Return the files that travel in the report, and those that have to be brought to the server before."""
    small: list[StoredFile] = []
    large: dict[str, Path] = {}
    room = _INLINE_SUM_BYTES
    were_cut = frozenset(cut)
    for name, path in found.files.items():
        content = b"" if _is_empty(path) else _read_small(path, min(INLINE_BYTES, bounds.file_bytes, room))
        if content is None:
            large[name] = path
            continue
        room -= len(content)
        checksum = hashlib.sha256(content).hexdigest()
        small.append(StoredFile(name, checksum, len(content), content, truncated=name in were_cut))
    return tuple(small), large


def _is_empty(path: Path) -> bool:
    status = os.lstat(path)
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _read_small(path: Path, most: int) -> bytes | None:
    with open_regular(path) as file:
        content = file.read(most + 1)
    return content if len(content) <= most else None
