"""Reads trees in JSON and TOML; has the syntax errors of all formats.

A name that occurs twice in one JSON object is an error, although JSON allows it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from itertools import pairwise

from pilotage.errors import InvalidTreeError, Violation

_LONG_NUMBER = re.compile(rf"\d{{{sys.int_info.default_max_str_digits}}}")


class TextSyntaxError(InvalidTreeError):
    """A text has a syntax error, `why`, on a line that is counted from 1."""

    def __init__(self, why: str, line: int, column: int | None) -> None:
        where = f"line {line}" if column is None else f"line {line}, column {column}"
        super().__init__(Violation(where, why))
        self.why = why
        self.line = line


def syntax_error(why: str, line: int, column: int | None = None) -> TextSyntaxError:
    """Return the error for a fault at a line and column, counted from 1."""
    return TextSyntaxError(why, line, column)


def position_of(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column, counted from 1, of the character at `offset`."""
    line = text.count("\n", 0, offset) + 1
    return line, offset - text.rfind("\n", 0, offset)


def as_section(data: object) -> Mapping[str, object]:
    """Return `data` if it is a mapping; raises InvalidTreeError otherwise."""
    if isinstance(data, dict):
        return data
    why = "the text is empty" if data is None else "the text is not a section with names"
    raise InvalidTreeError(Violation("", why))


def too_deep(line: int | None = None, column: int | None = None) -> InvalidTreeError:
    """Return the error for too deep nesting; `line` None = the position is unknown."""
    why = "sections are nested too deeply"
    return InvalidTreeError(Violation("", why)) if line is None else syntax_error(why, line, column)


def too_long_a_number(text: str) -> InvalidTreeError:
    """Return the error for a number with more digits than Python reads."""
    why = "a number of thousands of digits"
    found = _LONG_NUMBER.search(text)
    return syntax_error(why, *position_of(text, found.start())) if found else InvalidTreeError(Violation("", why))


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


def read_json(text: str) -> Mapping[str, object]:
    """Return the plain data of a tree in JSON; raises InvalidTreeError for a syntax error."""
    repeated: list[str] = []

    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            repeated.append("")
        return content

    try:
        data = json.loads(text, object_pairs_hook=as_object)
    except json.JSONDecodeError as error:
        raise syntax_error(error.msg, error.lineno, error.colno) from error
    except RecursionError as error:
        raise too_deep() from error
    except ValueError as error:
        raise too_long_a_number(text) from error
    if repeated:
        raise _first_duplicate(text)
    return as_section(data)


def _first_duplicate(text: str) -> InvalidTreeError:
    """Return the error for the first duplicate name; `text` is valid JSON with a duplicate."""
    names: list[set[str]] = [set()]
    tokens = list(_TOKEN.finditer(text))
    for token, following in pairwise(tokens):
        if token[0] in "{[":
            names.append(set())
        elif token[0] in "}]":
            names.pop()
        elif token[0][0] == '"' and following[0] == ":":
            name = json.loads(token[0])
            if name in names[-1]:
                return syntax_error(f'"{name}" stands twice in one object', *position_of(text, token.start()))
            names[-1].add(name)
    raise AssertionError("the decoder found a repetition")


_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def read_toml(text: str) -> Mapping[str, object]:
    """Return the plain data of a tree in TOML; raises InvalidTreeError for a syntax error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _with_position(str(error), text) from error
    except RecursionError as error:
        raise too_deep() from error
    except ValueError as error:
        raise too_long_a_number(text) from error


def _with_position(message: str, text: str) -> InvalidTreeError:
    # The parser reports the position only in its message.
    place = _PLACE.search(message)
    if place is None:
        return InvalidTreeError(Violation("", message))
    why = message[: place.start()]
    if place["line"] is None:
        return syntax_error(why, *position_of(text, len(text)))
    return syntax_error(why, int(place["line"]), int(place["column"]))
