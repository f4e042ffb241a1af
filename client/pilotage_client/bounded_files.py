"""Files of the user that are read whole, if they are not larger than anyone means."""

from __future__ import annotations

import errno
import os
from pathlib import Path

LARGEST_BYTES = 64 * 1024 * 1024


def content_of(path: Path) -> bytes:
    """Return a file's content; raises OSError, also for one that is too large or without an end (a device)."""
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content
