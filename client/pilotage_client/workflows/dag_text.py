"""Text of DAGMan files: statements with their inline submit descriptions, words, and pairs key="value".

The rules are those of DAGMan: a statement is one line, `#` and `//` begin comment lines, and letter case of keywords
does not matter. In quotes a backslash protects the next character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Place(NamedTuple):
    """A line of a file, counted from 1; 0 = the whole."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return file:line."""
        return f"{self.file}:{self.line}" if self.line else self.file


class InlineDescription(NamedTuple):
    """The lines of an inline submit description; `place` is that of the first one."""

    place: Place
    text: str


class DagStatement(NamedTuple):
    """One statement: `keyword` in capitals, with `-` as `_`, and the text behind it.

    An inline description is not in `text`; words behind its end are.
    """

    place: Place
    keyword: str
    text: str
    inline: InlineDescription | None = None


class DagFault(Exception):  # noqa: N818 — as in the readers, it is a value until all faults are known
    """A faulty statement; used inside this package."""

    def __init__(self, place: Place, cause: str) -> None:
        super().__init__(cause)
        self.place = place
        self.cause = cause


_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_WORD = re.compile(rf"""(?:{_QUOTED}|[^\s"'])+""")
_PAIR = re.compile(rf"""\s*(?P<key>[^\s="']+)\s*=\s*(?P<value>(?:{_QUOTED}|[^\s"'])+)(?=\s|$)""")
_PIECE = re.compile(rf"""{_QUOTED}|[^"']+""")
_PROTECTED = re.compile(r"\\(.)")
_HAS_INLINE = frozenset({"JOB", "NODE", "FINAL", "SUBMIT_DESCRIPTION", "PROVISIONER", "SERVICE"})
_INLINE_BEGIN = re.compile(r"(?P<name>\S+)\s+(?:(?P<bracket>\{)|@=(?P<tag>\S*))(?P<rest>.*)")


def dag_statements(text: str, file: str, faults: list[DagFault]) -> Iterator[DagStatement]:
    """Yield the statements of a DAG file; faulty ones are added to `faults`."""
    lines = text.split("\n")
    position = 0
    while position < len(lines):
        place = Place(file, position + 1)
        line = lines[position].strip()
        position += 1
        if not line or line.startswith(("#", "//")):
            continue
        keyword, *rest = line.split(maxsplit=1)
        statement = DagStatement(place, folded_keyword(keyword), rest[0] if rest else "")
        begin = _INLINE_BEGIN.fullmatch(statement.text) if statement.keyword in _HAS_INLINE else None
        if begin is None:
            yield statement
            continue
        try:
            yield _with_inline(statement, begin, lines)
        except DagFault as fault:
            faults.append(fault)
        position = _line_behind(lines, position, _closing(begin))


def folded_keyword(keyword: str) -> str:
    """Return the form of a keyword by which keywords are compared."""
    return keyword.upper().replace("-", "_")


def _closing(begin: re.Match[str]) -> str:
    return "}" if begin["bracket"] else f"@{begin['tag']}"


def _with_inline(statement: DagStatement, begin: re.Match[str], lines: list[str]) -> DagStatement:
    """Return a statement with the description that begins behind its line."""
    first, closing = statement.place.line, _closing(begin)
    if closing == "@":
        raise DagFault(statement.place, "the inline description needs a mark behind @=")
    if begin["rest"].strip():
        raise DagFault(statement.place, f"write the lines of the description below, not {begin['rest'].strip():.60}")
    behind = _line_behind(lines, first, closing)
    if behind > len(lines):
        raise DagFault(statement.place, f"the inline description has no end; {closing} ends it")
    inline = InlineDescription(Place(statement.place.file, first + 1), "\n".join(lines[first : behind - 1]))
    return statement._replace(
        text=f"{begin['name']} {lines[behind - 1].strip().removeprefix(closing).strip()}".strip(), inline=inline
    )


def _line_behind(lines: list[str], start: int, closing: str) -> int:
    """Return the position behind the line that closes an inline description; beyond all lines = there is none."""
    for position in range(start, len(lines)):
        if lines[position].split(maxsplit=1)[:1] == [closing]:
            return position + 1
    return len(lines) + 1


def words_of(statement: DagStatement) -> list[str]:
    """Return the words behind the keyword, without their quotes; raises DagFault at an unclosed quote."""
    text = statement.text
    if '"' not in text and "'" not in text:
        return text.split()
    if _WORD.sub("", text).strip():
        raise DagFault(statement.place, "a quote is not closed")
    return [_unquoted(word) for word in _WORD.findall(text)]


def pairs_of(statement: DagStatement, text: str) -> list[tuple[str, str]]:
    """Return the pairs key="value" of a text; raises DagFault if it has anything else."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while found := _PAIR.match(text, position):
        pairs.append((found["key"], _unquoted(found["value"])))
        position = found.end()
    if text[position:].strip() or not pairs:
        rest = text[position:].strip() or "nothing"
        raise DagFault(statement.place, f'expected NAME="VALUE", found {rest:.60}')
    return pairs


def _unquoted(word: str) -> str:
    if '"' not in word and "'" not in word:
        return word
    return "".join(_PROTECTED.sub(r"\1", piece[1:-1]) if piece[0] in "\"'" else piece for piece in _PIECE.findall(word))
