"""Names and checksums of jobs' files, for every program that creates or reads them.

A file never leaves the job's folder: its name is relative and has no "..". Contents are identified by SHA-256.
"""

from __future__ import annotations

import re

MAX_PARTS = 100
"""A limit, because folders are created and searched level by level."""

_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 4096
_LONGEST_PART = 255


def is_too_deep(name: str) -> bool:
    """Whether a file's name has too many folders."""
    return name.count("/") >= MAX_PARTS


def is_checksum(text: str) -> bool:
    """Return whether the text is a SHA-256 in 64 lower-case hex digits."""
    return _CHECKSUM.fullmatch(text) is not None


def fault_of_name(name: str) -> str:
    """Return why `name` is no file inside a job's folder; empty = it is one."""
    parts = name.split("/")
    checks = (
        (not name, "a file needs a name"),
        ("\0" in name or "\n" in name, "a file's name has no line breaks or zero characters"),
        (name.startswith("/"), "is absolute; files lie inside the job's folder"),
        (".." in parts, 'climbs with ".."; files lie inside the job\'s folder'),
        (is_too_deep(name), f"has more than {MAX_PARTS} parts"),
        (name.endswith("/") or set(parts) <= {"", "."}, "names a folder, not a file"),
        (
            len(name.encode()) > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts),
            f"is longer than {_LONGEST_NAME} bytes, or a part of it than {_LONGEST_PART}",
        ),
    )
    return next((why for failed, why in checks if failed), "")
