"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pilotage.errors import WorldError


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes its place when the block has ended well; raises WorldError where it cannot be written."""
    partial = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as output:
            yield output
        partial.replace(path)
    except OSError as error:
        raise WorldError(f"{path} cannot be written: {error.strerror}", transient=False) from error
    finally:
        with suppress(OSError):
            partial.unlink()
