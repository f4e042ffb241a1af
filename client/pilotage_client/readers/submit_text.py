"""Submit text taken apart into statements, so that each can be pointed at; their meaning is HTCondor's to read.

Rules
-----
A statement is a line with its continuations, a multi-line value `NAME @=TAG … @TAG`, or a queue statement with
the list that follows it. The original lines are kept: it is these that HTCondor's parser gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pilotage.folding import fold
from pilotage_client.readers.read_error import StatementFaultError


class Kind(StrEnum):
    """What a statement does."""

    ASSIGN = "assign"
    QUEUE = "queue"
    IF = "if"
    ELSE = "else"
    ENDIF = "endif"
    INCLUDE = "include"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: `lines` as in the file from `line` on, `name` folded and empty unless it assigns.

    `text` is the whole in one line, without the name of a queue statement; `listed` are the lines of the list
    that follows such a one.
    """

    kind: Kind
    line: int
    lines: tuple[str, ...]
    text: str
    name: str = ""
    listed: tuple[str, ...] = ()


_ASSIGN = re.compile(r"\s*(?P<plus>\+)?(?P<name>[\w.]+)\s*(?:=|@=\s*(?P<tag>\S+))")
_WORD = re.compile(r"\s*(?P<word>[A-Za-z]+)\b")
_QUEUE = re.compile(r"\s*queue(?=\s|$)(?!\s*=)", re.IGNORECASE)
_OPENED_LIST = re.compile(r"\b(?:in|from|matching)\b[^()]*\((?P<first>[^)]*)$", re.IGNORECASE)
_KINDS = {
    "if": Kind.IF,
    "elif": Kind.ELSE,
    "else": Kind.ELSE,
    "endif": Kind.ENDIF,
    "include": Kind.INCLUDE,
}
OWN_ATTRIBUTE = "my."
"""How the name of an attribute that the owner adds to the job begins: `+Name` is `MY.Name`."""


def submit_statements(text: str) -> list[Statement]:
    """Return the statements of a submit file, comments and blank lines left out.

    Raises
    ------
    StatementFaultError
        At a multi-line value, a queue list or an `if` without an end, an end of none, an attribute without a name.
    """
    statements = list(_statements(text.split("\n")))
    _check_conditions(statements)
    return statements


def _check_conditions(statements: list[Statement]) -> None:
    open_conditions: list[Statement] = []
    for statement in statements:
        if statement.kind is Kind.IF:
            open_conditions.append(statement)
        elif statement.kind in (Kind.ELSE, Kind.ENDIF) and not open_conditions:
            raise StatementFaultError(statement.line, f"{statement.text} without an if")
        elif statement.kind is Kind.ENDIF:
            open_conditions.pop()
    if open_conditions:
        raise StatementFaultError(open_conditions[-1].line, "this if has no endif")


def has_queue_statement(text: str) -> bool:
    """Say whether a text has a line that queues jobs, as only a submit file has."""
    return any(_QUEUE.match(line) for line in text.split("\n"))


def _statements(lines: list[str]) -> Iterator[Statement]:
    position = 0
    while position < len(lines):
        if not lines[position].strip() or lines[position].lstrip().startswith("#"):
            position += 1
            continue
        end = _end_of_logical_line(lines, position)
        text = _joined(lines[position:end])
        if _QUEUE.match(text):
            statement, end = _queue_statement(lines, position, end, text)
        else:
            statement, end = _plain_statement(lines, position, end, text)
        yield statement
        position = end


def _end_of_logical_line(lines: list[str], position: int) -> int:
    while position < len(lines) and lines[position].rstrip().endswith("\\"):
        position += 1
    return min(position + 1, len(lines))


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip().removesuffix("\\").strip() for line in lines).strip()


def _plain_statement(lines: list[str], start: int, end: int, text: str) -> tuple[Statement, int]:
    assign = _ASSIGN.match(text)
    if assign is not None and assign["tag"] is not None:
        end = _line_after(lines, start, f"@{assign['tag']}", f"the value that ends with @{assign['tag']}")
        text = "\n".join(lines[start:end])
    if assign is None and text.startswith("+"):
        raise StatementFaultError(start + 1, f"not an attribute +NAME = VALUE: {text:.60}")
    word = _WORD.match(text)
    kind = _KINDS.get(word["word"].lower(), Kind.OTHER) if word is not None else Kind.OTHER
    name = ""
    if assign is not None:
        kind = Kind.ASSIGN
        name = fold(f"{OWN_ATTRIBUTE}{assign['name']}" if assign["plus"] else assign["name"])
    return Statement(kind, start + 1, tuple(lines[start:end]), text, name), end


def _queue_statement(lines: list[str], start: int, end: int, text: str) -> tuple[Statement, int]:
    arguments = _QUEUE.sub("", text, count=1).strip()
    opened = _OPENED_LIST.search(arguments)
    if opened is None:
        return Statement(Kind.QUEUE, start + 1, tuple(lines[start:end]), arguments), end
    list_start = end
    end = _line_after(lines, start, ")", "the list of this queue statement", first=list_start)
    listed = (opened["first"], *lines[list_start : end - 1])
    head = arguments[: opened.start("first")]
    return Statement(Kind.QUEUE, start + 1, tuple(lines[start:end]), head, listed=tuple(listed)), end


def _line_after(lines: list[str], start: int, closing: str, what: str, first: int | None = None) -> int:
    """Return the position after the line that begins with `closing`."""
    for position in range(start + 1 if first is None else first, len(lines)):
        if lines[position].lstrip().startswith(closing):
            return position + 1
    raise StatementFaultError(start + 1, f"{what} has no end")
