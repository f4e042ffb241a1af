"""Submit text: its statements, and the macros at a queue statement as HTCondor's parser reads them.

A statement is a line with its continuations, a multi-line value `NAME @=TAG … @TAG`, or a queue statement with its
list. It keeps its original lines for HTCondor's parser, `htcondor2.Submit`, which does all work on macros.

The parser has three limits. It stops at the first queue statement, so a program is the text without its other queue
statements. It reports a fault without a position, so the fault is found by shortening the text. It never returns from
circular macros, so circles are detected before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from zlib import crc32

from pilotage.classads.library import htcondor_library
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import did_you_mean, fold
from pilotage_client.readers.draft import StatementFaultError


class StatementKind(StrEnum):
    """The effect of a statement."""

    ASSIGN = "assign"
    QUEUE = "queue"
    IF = "if"
    ELSE = "else"
    ENDIF = "endif"
    INCLUDE = "include"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SubmitStatement:
    """One statement: `lines` as in the file from `line` on, `name` folded and empty unless it assigns.

    `text` is the whole in one line, without the name of a queue statement; `listed` are the lines of the list
    that follows such a one.
    """

    kind: StatementKind
    line: int
    lines: tuple[str, ...]
    text: str
    name: str = ""
    list_lines: tuple[str, ...] = ()


_ASSIGN = re.compile(r"\s*(?P<plus>\+)?(?P<name>[\w.]+)\s*(?:=|@=\s*(?P<tag>\S+))")
_MESSAGE = re.compile(r"\s*(?P<kind>error|warning)\s*:\s*(?P<text>.*)", re.IGNORECASE)
_WORD = re.compile(r"\s*(?P<word>[A-Za-z]+)\b")
_QUEUE = re.compile(r"\s*queue(?=\s|$)(?!\s*=)", re.IGNORECASE)
_OPENED_LIST = re.compile(r"\b(?:in|from|matching)\b[^()]*\((?P<first>[^)]*)$", re.IGNORECASE)
_KINDS = {
    "if": StatementKind.IF,
    "elif": StatementKind.ELSE,
    "else": StatementKind.ELSE,
    "endif": StatementKind.ENDIF,
    "include": StatementKind.INCLUDE,
}
CUSTOM_PREFIX = "my."
"""The prefix of a custom attribute's name: `+Name` is `MY.Name`."""

_MESSAGE_PREFIX = "pilotage_message_"
"""The prefix of the macro that stands for a statement `error : TEXT` or `warning : TEXT` in HTCondor's parser."""


def submit_statements(text: str) -> list[SubmitStatement]:
    """Return the statements of a submit file, without comments and blank lines.

    Raises
    ------
    StatementFaultError
        At an unclosed multi-line value, queue list or `if`, an `endif` without an `if`, an attribute without a name.
    """
    statements = list(_statements(text.split("\n")))
    _check_conditions(statements)
    return statements


def _check_conditions(statements: list[SubmitStatement]) -> None:
    open_conditions: list[SubmitStatement] = []
    for statement in statements:
        if statement.kind is StatementKind.IF:
            open_conditions.append(statement)
        elif statement.kind in (StatementKind.ELSE, StatementKind.ENDIF) and not open_conditions:
            raise StatementFaultError(statement.line, f"{statement.text} without an if")
        elif statement.kind is StatementKind.ENDIF:
            open_conditions.pop()
    if open_conditions:
        raise StatementFaultError(open_conditions[-1].line, "this if has no endif")


def assignment(name: str, value: str) -> SubmitStatement:
    """Return the statement that gives a name a value of one line, before the text of a file."""
    text = f"{name} = {value}"
    return SubmitStatement(StatementKind.ASSIGN, 1, (text,), text, fold(name))


def appended_statements(texts: Sequence[str]) -> list[SubmitStatement]:
    """Return the statements that condor_submit's option -append puts before each queue statement.

    Raises
    ------
    InvalidInputError
        A text is not one statement NAME = VALUE or +NAME = VALUE.
    """
    statements: list[SubmitStatement] = []
    for text in texts:
        try:
            found = submit_statements(text)
        except StatementFaultError:
            found = []
        if len(found) != 1 or found[0].kind is not StatementKind.ASSIGN or _MESSAGE.match(text):
            raise InvalidInputError(Violation(f"--append {text!r}", "is not a statement NAME = VALUE or +NAME = VALUE"))
        statements += found
    return statements


def with_appended(statements: list[SubmitStatement], appended: Sequence[SubmitStatement]) -> list[SubmitStatement]:
    """Return the statements with `appended` ones before each queue statement, at its line."""
    return [
        placed
        for each in statements
        for placed in (*(replace(one, line=each.line) for one in appended if each.kind is StatementKind.QUEUE), each)
    ]


def names_that_parsing_uses(statements: list[SubmitStatement]) -> set[str]:
    """Return the folded names whose value matters before all statements are read: assigned ones, those in conditions.

    The value of any other name only replaces macros afterwards.
    """
    assigned = {each.name for each in statements if each.kind is StatementKind.ASSIGN}
    kinds = (StatementKind.IF, StatementKind.ELSE, StatementKind.INCLUDE, StatementKind.OTHER)
    others = (each.text for each in statements if each.kind in kinds)
    return assigned | {fold(name) for text in others for name in _NAME.findall(text)}


def has_queue_statement(text: str) -> bool:
    """Return whether a text has a queue statement, as only a submit file has."""
    return any(_QUEUE.match(line) for line in text.split("\n"))


def _statements(lines: list[str]) -> Iterator[SubmitStatement]:
    position = 0
    while position < len(lines):
        if not lines[position].strip() or lines[position].lstrip().startswith("#"):
            position += 1
            continue
        end = position
        while end < len(lines) and lines[end].rstrip().endswith("\\"):
            end += 1
        end = min(end + 1, len(lines))
        text = " ".join(line.strip().removesuffix("\\").strip() for line in lines[position:end]).strip()
        if _QUEUE.match(text):
            statement, end = _queue_statement(lines, position, end, text)
        else:
            statement, end = _plain_statement(lines, position, end, text)
        yield statement
        position = end


def _plain_statement(lines: list[str], start: int, end: int, text: str) -> tuple[SubmitStatement, int]:
    assign = _ASSIGN.match(text)
    if assign is not None and assign["tag"] is not None:
        end = _line_after(lines, start, f"@{assign['tag']}", f"the value that ends with @{assign['tag']}")
        text = "\n".join(lines[start:end])
    if assign is None and text.startswith("+"):
        raise StatementFaultError(start + 1, f"not an attribute +NAME = VALUE: {text:.60}")
    message = _MESSAGE.match(text)
    if message is not None:  # the macro is defined if no `if` skips the statement
        name = f"{_MESSAGE_PREFIX}{fold(message['kind'])}_{start + 1}_{crc32(text.encode()):x}"
        return SubmitStatement(StatementKind.ASSIGN, start + 1, (f"{name} = {message['text']}",), text, name), end
    word = _WORD.match(text)
    kind = _KINDS.get(word["word"].lower(), StatementKind.OTHER) if word is not None else StatementKind.OTHER
    name = ""
    if assign is not None:
        kind = StatementKind.ASSIGN
        name = fold(f"{CUSTOM_PREFIX}{assign['name']}" if assign["plus"] else assign["name"])
    return SubmitStatement(kind, start + 1, tuple(lines[start:end]), text, name), end


def _queue_statement(lines: list[str], start: int, end: int, text: str) -> tuple[SubmitStatement, int]:
    arguments = _QUEUE.sub("", text, count=1).strip()
    opened = _OPENED_LIST.search(arguments)
    if opened is None:
        return SubmitStatement(StatementKind.QUEUE, start + 1, tuple(lines[start:end]), arguments), end
    list_start = end
    end = _line_after(lines, start, ")", "the list of this queue statement", first=list_start)
    listed = (opened["first"], *lines[list_start : end - 1])
    head = arguments[: opened.start("first")]
    return SubmitStatement(StatementKind.QUEUE, start + 1, tuple(lines[start:end]), head, list_lines=tuple(listed)), end


def _line_after(lines: list[str], start: int, closing: str, what: str, first: int | None = None) -> int:
    """Return the position after the line that begins with `closing`."""
    for position in range(start + 1 if first is None else first, len(lines)):
        if lines[position].lstrip().startswith(closing):
            return position + 1
    raise StatementFaultError(start + 1, f"{what} has no end")


_JOB_MACROS = frozenset(
    {"cluster", "clusterid", "process", "procid", "step", "row", "item", "itemindex", "node", "dollar"}
)
"""Macros that HTCondor defines for each job or item."""

_SUBMISSION_MACROS = frozenset({"year", "month", "day", "submit_time", "submit_file"})

PROCESS_MACROS = ("process", "procid")
"""The macros for the number of a job in its cluster."""
_VARYING = frozenset({*PROCESS_MACROS, "step", "random_choice", "random_integer"})
_LONGEST_TEXT = 1_000_000
_MOST_INVALID = 20
_DEEPEST_NESTING = 200
_REFERENCE = re.compile(r"(?<!\$)\$(?P<function>\w*)\(\s*(?P<name>[\w.]+)?(?P<rest>[^()$]*)(?P<closed>\))?")
_FUNCTION = re.compile(r"(?<!\$)\$\w+\(")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_MARK = "pilotage_queue_statement_reached"
_PROBE = "pilotage_probe"


class SubmitProgram:
    """The macros of a submit file at one queue statement.

    Raises
    ------
    StatementFaultError
        From the constructor: at the first line that HTCondor's parser rejects, and at circular macros.
    """

    def __init__(self, statements: list[SubmitStatement], queue: SubmitStatement) -> None:
        self._queue = queue
        self._before = [each for each in statements if each.line <= queue.line]
        self._text = _program_text(self._before)
        self._submit = _parsed(self._before)
        self.is_reached = _MARK in self._submit
        """Whether no false `if` skips the queue statement."""
        self._values = {fold(name): self._submit[name] for name in self._submit if name != _MARK}
        self.structure = 0
        """Changes when a definition may have changed which macros are used, or which ones are defined."""
        self._has_functions = any(_FUNCTION.search(value) for value in self._values.values())
        self._check_for_circles()

    def define(self, values: Mapping[str, str]) -> None:
        """Define macros, as a queue statement sets its variables to the words of an item."""
        changes = self._has_functions and bool(values)
        for name, value in values.items():
            folded = fold(name)
            before = self._values.get(folded)
            changes |= before is None or "$" in value or "$" in before
            self._submit[name] = value
            self._values[folded] = value
        self.structure += changes
        if any("$" in value for value in values.values()):
            self._check_for_circles()

    def define_builtin(self, values: Mapping[str, str]) -> None:
        """Define built-in macros of HTCondor; a definition in the file takes precedence."""
        for name, value in values.items():
            if fold(name) not in self._values:
                self._submit[name] = value

    def names(self) -> list[str]:
        """Return the defined names, as spelled in the file."""
        return [name for name in self._submit if fold(name) in self._values and not _is_message(name)]

    def messages(self, kind: str) -> list[tuple[int, str]]:
        """Return line and text of each statement `error : TEXT` or `warning : TEXT` that no false `if` skips."""
        names = (name for name in self._submit if fold(name).startswith(f"{_MESSAGE_PREFIX}{kind}_"))
        return sorted((self.line_of(name), self.value(name)) for name in names)

    def value(self, name: str) -> str:
        """Return the value of a name with its macros replaced; empty if undefined."""
        try:
            return str(self._submit.expand(name)).strip()
        except KeyError:  # raised for an empty result too
            return ""

    def expand(self, text: str) -> str:
        """Return a text with its macros replaced."""
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
        """Return the items of a queue statement, as words by variable."""
        if any(line.startswith(")") for line in lines):
            raise StatementFaultError(self._queue.line, "an item begins with a bracket that closes the list")
        listed = "\n".join(lines)
        text = f"{self._text}\nqueue {variables} {source} (\n{listed}\n)\n"
        try:
            return list(htcondor_library().Submit(text).itemdata() or ())
        except (ValueError, IndexError, KeyError) as error:
            raise StatementFaultError(self._queue.line, f"the items cannot be read: {error}") from error

    def line_of(self, name: str) -> int:
        """Return the line that defines a name; for variables of the queue statement its line."""
        lines = [each.line for each in self._before if each.kind is StatementKind.ASSIGN and each.name == fold(name)]
        return lines[-1] if lines else self._queue.line

    def jobs_differ(self) -> bool:
        """Return whether the jobs of one item may differ from each other."""
        return any(not _VARYING.isdisjoint(_names_in(value)) for value in self._values.values())

    def is_process_plain(self) -> bool:
        """Return whether the jobs of one item differ in `$(Process)` alone, and no function of macros reads that."""
        for each in (each for value in self._values.values() for each in _REFERENCE.finditer(value)):
            name = fold(each["name"] or "")
            is_plain = each["closed"] and fold(each["function"]) in ("", "env")
            if not is_plain or (name in _VARYING and (name not in PROCESS_MACROS or each["rest"])):
                return False
        return True

    def references(self) -> set[str]:
        """Return the folded names that macros and conditions refer to."""
        texts = [*self._values.values(), self._queue.text]
        names = {name for text in texts for name in _names_in(text)}
        conditions = (each.text for each in self._before if each.kind in (StatementKind.IF, StatementKind.ELSE))
        return names | {fold(name) for text in conditions for name in _NAME.findall(text)}

    def undefined_macros(self) -> list[str]:
        """Return the macros that are used but not defined, as written."""
        macros = (found for text in list(self._values.values()) for found in _REFERENCE.finditer(text))
        return sorted({f"${each['function']}({each['name']})" for each in macros if self._is_undefined(each)})

    def definitions_with(self, text: str) -> list[tuple[int, str, str]]:
        """Return line, name and value of each definition with this text, in any letter case."""
        values = ((name, self._submit[name]) for name in self.names())
        return [(self.line_of(name), name, value) for name, value in values if fold(text) in fold(value)]

    def _is_undefined(self, found: re.Match[str]) -> bool:
        function, name = fold(found["function"]), found["name"]
        if not name or not found["closed"] or found["rest"].startswith(":"):
            return False
        if not function and fold(name) in _JOB_MACROS | _SUBMISSION_MACROS:
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
        """Return the largest length of an expanded value: a short text must not fill the memory."""
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


def _is_message(name: str) -> bool:
    return fold(name).startswith(_MESSAGE_PREFIX)


def _names_in(value: str) -> list[str]:
    """Return the folded names of the macros and random functions that a value uses."""
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


def without_invalid(statements: list[SubmitStatement]) -> tuple[list[SubmitStatement], list[StatementFaultError]]:
    """Return the statements that HTCondor's parser accepts, and the faults of the others.

    Statements after the last queue statement count for nothing. Faults of conditions and includes are not looked for,
    as the other statements depend on these.
    """
    queues = [number for number, each in enumerate(statements) if each.kind is StatementKind.QUEUE]
    valid = statements[: queues[-1] + 1] if queues else statements
    faults: list[StatementFaultError] = []
    submit = htcondor_library().Submit
    while len(faults) < _MOST_INVALID:
        try:
            submit(_program_text(valid))
        except ValueError:
            fault = _first_fault(valid)
        else:
            break
        if fault.kind not in (StatementKind.ASSIGN, StatementKind.OTHER):
            break
        faults.append(_fault_at(fault))
        valid = [each for each in valid if each is not fault]
    return valid, faults


def _fault_at(statement: SubmitStatement) -> StatementFaultError:
    if statement.kind is not StatementKind.INCLUDE:
        meant = did_you_mean(statement.text.partition(" ")[0], ["queue"])
        return StatementFaultError(statement.line, f"not a submit command: {statement.text[:60]}{meant}")
    # Only the include of a missing file is still there: those of others are replaced by the files.
    is_missing = any(line.lstrip().lower().startswith("include") for line in statement.lines)
    why = "there is no such file" if is_missing else "a line of this file is no submit command"
    return StatementFaultError(statement.line, f"{statement.text[:200]}: {why}")


def _parsed(statements: list[SubmitStatement]) -> Any:
    """Return HTCondor's parse of the statements; raises StatementFaultError at the first invalid one."""
    submit = htcondor_library().Submit
    try:
        return submit(_program_text(statements))
    except ValueError:
        fault = _first_fault(statements)
    raise _fault_at(fault)


def _first_fault(statements: list[SubmitStatement]) -> SubmitStatement:
    """Return the first statement that makes the text invalid, by bisection: a longer text stays invalid."""
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


def _program_text(statements: list[SubmitStatement]) -> str:
    """Return the statements as text: a mark for a final queue statement, without others, each `if` closed."""
    lines: list[str] = []
    depth = 0
    for statement in statements:
        depth += (statement.kind is StatementKind.IF) - (statement.kind is StatementKind.ENDIF)
        if statement.kind is not StatementKind.QUEUE:
            lines.extend(statement.lines)
    if statements and statements[-1].kind is StatementKind.QUEUE:
        lines.append(f"{_MARK} = true")
    return "\n".join([*lines, *["endif"] * depth]) + "\n"
