"""Files that jobs bring and leave: their names, checksums and what a pilot reports of them.

Rules
-----
A file never leaves the job's folder: its name is relative and never climbs. Contents are known by SHA-256.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pilotage.file_names import MOST_PARTS, is_too_deep

CHECKSUM = re.compile(r"[0-9a-f]{64}")
MAX_INLINE_BYTES = 64 * 1024
"""A content up to this size may travel inside a report."""

_LONGEST_NAME = 4096
_LONGEST_PART = 255


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that an attempt left behind; `truncated` = the pilot cut it at the allowed size."""

    name: str
    checksum: str
    size: int
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ReportedOutput:
    """An output file as a pilot reports it; `content` None = the pilot has uploaded it before."""

    name: str
    checksum: str
    size: int
    content: bytes | None = None
    truncated: bool = False


def is_checksum(text: str) -> bool:
    """Return whether the text is a SHA-256 in 64 lower-case hex digits."""
    return CHECKSUM.fullmatch(text) is not None


def fault_of_name(name: str) -> str:
    """Return why `name` cannot be a file inside a job's folder; empty = it can."""
    parts = name.split("/")
    checks = (
        (not name, "a file needs a name"),
        ("\0" in name or "\n" in name, "a file's name has no line breaks or zero characters"),
        (name.startswith("/"), "is absolute; files lie inside the job's folder"),
        (".." in parts, 'climbs with ".."; files lie inside the job\'s folder'),
        (is_too_deep(name), f"has more than {MOST_PARTS} parts"),
        (name.endswith("/") or set(parts) <= {"", "."}, "names a folder, not a file"),
        (
            len(name.encode()) > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts),
            f"is longer than {_LONGEST_NAME} bytes, or a part of it than {_LONGEST_PART}",
        ),
    )
    return next((why for failed, why in checks if failed), "")
