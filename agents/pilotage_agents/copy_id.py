"""What tells a copy of an agent apart from all others: an agent that starts again in its folder is the same copy."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from pilotage.errors import WorldError

_NAME = "copy-id"


def copy_id(folder: Path) -> str:
    """Return the id of the copy whose folder this is, made when it is wanted first; raises WorldError."""
    path = folder / _NAME
    try:
        if not path.exists():
            new = path.with_suffix(".new")
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(uuid4().hex)
            new.replace(path)
        return path.read_text()
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error
