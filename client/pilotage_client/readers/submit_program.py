"""A submit file up to one of its queue statements, as HTCondor's own parser understands it.

Rules
-----
Everything about macros is done by `htcondor2.Submit`. It needs help in three things: it stops at the first queue
statement, it says of a fault only that there is one, and it never returns from macros that refer to each other in
a circle. So a program is the text without its other queue statements, a fault is found by shortening the text,
and circles are looked for before anything is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pilotage.classads import htcondor_library
from pilotage.folding import fold
from pilotage_client.readers.read_error import StatementFaultError
from pilotage_client.readers.submit_text import Kind, Statement

_LIVE = frozenset({"cluster", "clusterid", "process", "procid", "step", "row", "item", "itemindex", "node", "dollar"})
"""Macros whose value HTCondor gives for each job, or for each item."""

_OF_SUBMISSION = frozenset({"year", "month", "day", "submit_time", "submit_file"})

_VARYING = frozenset({"process", "procid", "step", "random_choice", "random_integer"})
_LONGEST_TEXT = 1_000_000
_DEEPEST_NESTING = 200
_REFERENCE = re.compile(r"(?<!\$)\$(?P<function>\w*)\(\s*(?P<name>[\w.]+)?(?P<rest>[^()$]*)(?P<closed>\))?")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_MARK = "pilotage_queue_statement_reached"
_PROBE = "pilotage_probe"


class SubmitProgram:
    """The macros of a submit file as they are at one queue statement.

    Raises
    ------
    StatementFaultError
        At making: at the first line that HTCondor does not take, and at macros that refer to each other in a
        circle.
    """

    def __init__(self, statements: list[Statement], queue: Statement) -> None:
        self._queue = queue
        self._before = [each for each in statements if each.line <= queue.line]
        self._text = _program_text(self._before)
        self._submit = _parsed(self._before)
        self.is_reached = _MARK in self._submit
        """Whether the queue statement stands under no `if` that does not hold."""
        self._values = {fold(name): self._submit[name] for name in self._submit if name != _MARK}
        self._check_for_circles()

    def define(self, values: Mapping[str, str]) -> None:
        """Give macros a value, as a queue statement gives its variables the words of an item."""
        for name, value in values.items():
            self._submit[name] = value
            self._values[fold(name)] = value
        if any("$" in value for value in values.values()):
            self._check_for_circles()

    def define_live(self, values: Mapping[str, str]) -> None:
        """Set macros of HTCondor's own; one that the file defines itself stays."""
        for name, value in values.items():
            if fold(name) not in self._values:
                self._submit[name] = value

    def names(self) -> list[str]:
        """Return the names that have a value, as spelled in the file."""
        return [name for name in self._submit if fold(name) in self._values]

    def value(self, name: str) -> str:
        """Return the value of a name with its macros replaced; empty where it has none."""
        try:
            return str(self._submit.expand(name)).strip()
        except KeyError:  # also where the value comes to nothing
            return ""

    def expand(self, text: str) -> str:
        """Return any text with its macros replaced."""
        if "$" not in text:
            return text
        self._submit[_PROBE] = text
        self._values[_PROBE] = text
        try:
            self._check_for_circles()
            return self.value(_PROBE)
        finally:
            self._submit[_PROBE] = ""
            del self._values[_PROBE]

    def split_items(self, variables: str, source: str, lines: list[str]) -> list[dict[str, str]]:
        """Return the items of a queue statement, each word under its variable."""
        if any(line.startswith(")") for line in lines):
            raise StatementFaultError(self._queue.line, "an item begins with a bracket that closes the list")
        listed = "\n".join(lines)
        text = f"{self._text}\nqueue {variables} {source} (\n{listed}\n)\n"
        try:
            return list(htcondor_library().Submit(text).itemdata() or ())
        except (ValueError, IndexError, KeyError) as error:
            raise StatementFaultError(self._queue.line, f"the items cannot be read: {error}") from error

    def line_of(self, name: str) -> int:
        """Return the line of the statement that gave a name its value; the queue statement's gave its variables."""
        lines = [each.line for each in self._before if each.kind is Kind.ASSIGN and each.name == fold(name)]
        return lines[-1] if lines else self._queue.line

    def varies(self) -> bool:
        """Say whether the jobs of one item may differ from each other."""
        return any(not _VARYING.isdisjoint(_names_in(value)) for value in self._values.values())

    def references(self) -> set[str]:
        """Return the names that macros and conditions refer to, folded."""
        texts = [*self._values.values(), self._queue.text]
        names = {name for text in texts for name in _names_in(text)}
        conditions = (each.text for each in self._before if each.kind in (Kind.IF, Kind.ELSE))
        return names | {fold(name) for text in conditions for name in _NAME.findall(text)}

    def undefined_macros(self) -> list[str]:
        """Return the macros that are used, as written, and that nobody has given a value."""
        macros = (found for text in list(self._values.values()) for found in _REFERENCE.finditer(text))
        return sorted({f"${each['function']}({each['name']})" for each in macros if self._is_undefined(each)})

    def has_match_time_macros(self) -> bool:
        """Say whether a value asks for something of the slot, `$$(Name)`."""
        return any("$$(" in value for value in self._values.values())

    def _is_undefined(self, found: re.Match[str]) -> bool:
        function, name = fold(found["function"]), found["name"]
        if not name or not found["closed"] or found["rest"].startswith(":"):
            return False
        if not function and fold(name) in _LIVE | _OF_SUBMISSION:
            return False
        if function == "env":
            return not self.expand(f"$ENV({name}:)") and bool(self.expand(f"$ENV({name})"))
        if not function and fold(name) in self._values:
            return False
        return not self.expand(found.group())

    def _check_for_circles(self) -> None:
        lengths: dict[str, int] = {}
        for name in self._values:
            self._length(name, lengths, ())

    def _length(self, name: str, lengths: dict[str, int], path: tuple[str, ...]) -> int:
        """Return how long a value may get, so that a short text cannot fill the memory either."""
        if name in path:
            circle = " → ".join((*path[path.index(name) :], name))
            raise StatementFaultError(self.line_of(name), f"macros refer to each other in a circle: {circle}")
        if len(path) > _DEEPEST_NESTING:
            raise StatementFaultError(self.line_of(path[0]), f"macros nest deeper than {_DEEPEST_NESTING}")
        if name not in lengths:
            value = self._values[name]
            inner = [known for known in _names_in(value) if known in self._values]
            lengths[name] = len(value) + sum(self._length(each, lengths, (*path, name)) for each in inner)
            if lengths[name] > _LONGEST_TEXT:
                raise StatementFaultError(self.line_of(name), f"{name} becomes longer than {_LONGEST_TEXT} characters")
        return lengths[name]


def _names_in(value: str) -> list[str]:
    """Return the macros that a value refers to, folded, with the functions that choose at random."""
    names: list[str] = []
    for found in _REFERENCE.finditer(value):
        function = fold(found["function"])
        if function.startswith("random"):
            names.append(function)
        if found["name"] is not None and function != "env":
            names.append(fold(found["name"]))
        if function == "choice":
            names.extend(fold(name) for name in _NAME.findall(found["rest"]))
    return names


def _parsed(statements: list[Statement]) -> Any:
    """Return HTCondor's reading of the statements, or point at the first that it does not take."""
    submit = htcondor_library().Submit
    try:
        return submit(_program_text(statements))
    except ValueError:
        fault = _first_fault(statements)
    raise StatementFaultError(fault.line, f"not a submit command: {fault.text[:60]}")


def _first_fault(statements: list[Statement]) -> Statement:
    """Return the statement whose coming makes the text illegal, by halving: a longer text stays illegal."""
    submit = htcondor_library().Submit
    good, bad = 0, len(statements)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            submit(_program_text(statements[:middle]))
        except ValueError:
            bad = middle
        else:
            good = middle
    return statements[bad - 1]


def _program_text(statements: list[Statement]) -> str:
    """Return the text of the statements, a queue statement at their end as a mark, without others, each `if` closed."""
    lines: list[str] = []
    depth = 0
    for statement in statements:
        depth += (statement.kind is Kind.IF) - (statement.kind is Kind.ENDIF)
        if statement.kind is not Kind.QUEUE:
            lines.extend(statement.lines)
    if statements and statements[-1].kind is Kind.QUEUE:
        lines.append(f"{_MARK} = true")
    return "\n".join([*lines, *["endif"] * depth]) + "\n"
