"""Files that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path

from pilotage.errors import WorldError


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600, whole or not at all; raises WorldError where it cannot be written."""
    partial = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as output:
            output.write(text)
        partial.replace(path)
    except OSError as error:
        raise WorldError(f"{path} cannot be written: {error.strerror}", transient=False) from error
    finally:
        partial.unlink(missing_ok=True)
