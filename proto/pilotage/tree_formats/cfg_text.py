"""The syntax of DIRAC's configuration files: sections in braces, options `key = value`, comments.

    Name { … }            a section; its brace may stand on the next line, and all of it on one line
    key = value           an option; the value goes to the end of the line
    key += value          appends to what the option has, as one more element of its comma-separated list
    # comment, // comment at the start of a line or after white space

In a section that opens and closes on one line, several options may follow one another; there a value ends
where the next option or section begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotage.tree_formats.syntax import syntax_error

_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*$")
_NAME = re.compile(r"[^\s{}=][^{}=]*?(?=\s*(?:\+?=|[{}]|$))")
_NAME_IN_LINE = re.compile(r"[^\s{}=]+?(?=\s*(?:\+?=|[{}]|$)|\s)")
_ASSIGN = re.compile(r"\s*(\+?=)\s*")
_VALUE_IN_LINE = re.compile(r".*?(?=\s*\}|\s+[^\s{}=]+\s*(?:\+?=|\{)|\s*$)")


@dataclass(slots=True)
class CfgSection:
    """A section as it was written: its options as raw text, and its sections, each in their order."""

    line: int
    options: dict[str, str] = field(default_factory=dict)
    sections: dict[str, CfgSection] = field(default_factory=dict)

    def at(self, *path: str) -> CfgSection | None:
        """Return the section that lies along `path` below this one; None = there is none."""
        here: CfgSection | None = self
        for name in path:
            here = here.sections.get(name) if here else None
        return here


def parse_cfg(text: str) -> CfgSection:
    """Return the content of a file as one section without a name.

    Raises
    ------
    InvalidTreeError
        For the first line that is none of the above, a section that is not closed, or a name that is taken.
    """
    parser = _Parser()
    for number, line in enumerate(text.splitlines(), start=1):
        parser.read_line(number, _COMMENT.sub("", line))
    return parser.finished()


@dataclass(frozen=True, slots=True)
class _Option:
    key: str
    sign: str
    value: str


_Piece = _Option | str
"""An option, a brace, or the name of a section."""


def _pieces(line: str, number: int) -> Iterator[tuple[_Piece, int]]:
    """Return what stands on a line, each with its column."""
    position, opened = 0, False
    while position < len(line):
        column = position + 1
        if line[position].isspace():
            position += 1
        elif line[position] in "{}":
            opened = opened or line[position] == "{"
            yield line[position], column
            position += 1
        else:
            name = (_NAME_IN_LINE if opened else _NAME).match(line, position)
            if name is None:
                raise syntax_error("neither a section nor an option KEY = VALUE", number, column)
            assign = _ASSIGN.match(line, name.end())
            if assign is None:
                yield name[0], column
                position = name.end()
                continue
            value = _VALUE_IN_LINE.match(line, assign.end()) if opened else None
            position = value.end() if value else len(line)
            yield _Option(name[0], assign[1], line[assign.end() : position].strip()), column


class _Parser:
    """Puts the pieces of the lines together."""

    def __init__(self) -> None:
        self._open: list[tuple[str, CfgSection]] = [("", CfgSection(line=1))]
        self._named: tuple[str, int] | None = None

    def read_line(self, number: int, line: str) -> None:
        """Take the pieces of one line without its comment."""
        for piece, column in _pieces(line, number):
            if piece == "{":
                self._enter(number, column)
                continue
            self._expect_no_brace()
            if isinstance(piece, _Option):
                self._set(piece, number, column)
            elif piece == "}":
                self._leave(number, column)
            else:
                self._named = (piece, number)

    def finished(self) -> CfgSection:
        """Return all that was read; raises for what was begun and not ended."""
        self._expect_no_brace()
        name, section = self._open[-1]
        if name:
            raise syntax_error(f"the section {name}, which begins here, is not closed", section.line)
        return section

    def _enter(self, number: int, column: int) -> None:
        if self._named is None:
            raise syntax_error("a brace without the name of a section before it", number, column)
        (name, line), self._named = self._named, None
        above = self._open[-1][1]
        if name in above.sections or name in above.options:
            raise syntax_error(f"{name} stands twice in one section", line)
        above.sections[name] = section = CfgSection(line)
        self._open.append((name, section))

    def _leave(self, number: int, column: int) -> None:
        if len(self._open) == 1:
            raise syntax_error("a closing brace too many", number, column)
        self._open.pop()

    def _set(self, option: _Option, number: int, column: int) -> None:
        section = self._open[-1][1]
        before = section.options.get(option.key)
        if option.key in section.sections or (before is not None and option.sign == "="):
            raise syntax_error(f"{option.key} stands twice in one section", number, column)
        section.options[option.key] = f"{before}, {option.value}" if before else option.value

    def _expect_no_brace(self) -> None:
        if self._named is not None:
            name, line = self._named
            raise syntax_error(f"{name} is neither an option KEY = VALUE nor followed by a brace", line)
