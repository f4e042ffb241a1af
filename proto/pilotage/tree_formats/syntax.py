"""What the readers of all formats share: how a syntax error is told."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from pilotage.errors import InvalidTreeError, Violation

_LONG_NUMBER = re.compile(rf"\d{{{sys.int_info.default_max_str_digits}}}")


def syntax_error(why: str, line: int, column: int | None = None) -> InvalidTreeError:
    """Return the error for a fault at a place of the text, counted from 1."""
    where = f"line {line}" if column is None else f"line {line}, column {column}"
    return InvalidTreeError(Violation(where, why))


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column, counted from 1, of the character at `offset`."""
    line = text.count("\n", 0, offset) + 1
    return line, offset - text.rfind("\n", 0, offset)


def as_section(data: object) -> Mapping[str, object]:
    """Return what was read if it is a section with names; raises InvalidTreeError for anything else."""
    if isinstance(data, dict):
        return data
    why = "the text is empty" if data is None else "the text is not a section with names"
    raise InvalidTreeError(Violation("", why))


def too_deep(line: int | None = None, column: int | None = None) -> InvalidTreeError:
    """Return the error for sections within sections without end; None = the place is not known."""
    why = "sections are nested too deeply"
    return InvalidTreeError(Violation("", why)) if line is None else syntax_error(why, line, column)


def too_long_a_number(text: str) -> InvalidTreeError:
    """Return the error for the number in `text` that has more digits than Python reads."""
    why = "a number of thousands of digits"
    found = _LONG_NUMBER.search(text)
    return syntax_error(why, *place_of(text, found.start())) if found else InvalidTreeError(Violation("", why))
