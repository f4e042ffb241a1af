"""Resource tree files on the user's disk."""

from __future__ import annotations

from pathlib import Path

from pilotage.errors import InvalidInputError, Violation

FORMATS = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".cfg": "cfg"}


def tree_format(file: Path) -> str:
    """Return the format that a file's ending names; raises InvalidInputError for others."""
    try:
        return FORMATS[file.suffix.lower()]
    except KeyError:
        known = ", ".join(FORMATS)
        raise InvalidInputError(Violation(str(file), f"its ending names no format; known are {known}")) from None


def read_tree_file(file: Path) -> str:
    """Return a tree file's text; raises InvalidInputError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation(str(file), f"cannot be read: {error}")) from error
