"""Reads HTCondor submit files: queue statements, included files, and the jobs that they queue."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from glob import iglob
from pathlib import Path
from types import MappingProxyType

from pilotage.classads.library import InvalidClassAdError, parse_value
from pilotage.job_description import JobDescription
from pilotage.text import fold
from pilotage.units import LARGEST_COUNT
from pilotage_client.files import content_of
from pilotage_client.readers.draft import Draft, FileFaults, StatementFaultError
from pilotage_client.readers.submit_commands import draft_of, is_command, reading_order, resembles_command, squashed
from pilotage_client.readers.submit_handlers import SubmitCommand
from pilotage_client.readers.submit_text import (
    PROCESS_MACROS,
    StatementKind,
    SubmitProgram,
    SubmitStatement,
    appended_statements,
    assignment,
    names_that_parsing_uses,
    submit_statements,
    with_appended,
    without_invalid,
)

MAX_JOBS = 100_000
"""The number of different jobs that one file may queue."""

_SOURCE = re.compile(r"(?:^|[\s,])(?P<source>in|from|matching)\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_HEAD = re.compile(r"(?P<count>[^A-Za-z_]*?)[\s,]*(?P<variables>[A-Za-z_][\w.]*(?:[\s,]+[A-Za-z_][\w.]*)*)?[\s,]*")
_SLICE = re.compile(r"\s*\[(?P<parts>[-+\d\s:]*)\]")
_KIND_OF_MATCH = re.compile(r"\s*(?P<kind>files|dirs|any)\b", re.IGNORECASE)

Expand = Callable[[str], str]
"""Replaces the macros of a text."""

SplitItems = Callable[[str, str, list[str]], list[dict[str, str]]]
"""Returns the items of (variables, "in" or "from", lines), split by HTCondor's rules."""


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """The jobs of a queue statement: `count` for each item; `items` None = `count` in all."""

    count: int
    items: tuple[dict[str, str], ...] | None


def read_queue_statement(
    statement: SubmitStatement, base_dir: Path, expand: Expand, split_items: SplitItems
) -> QueueRequest:
    """Read a queue statement; paths and patterns are relative to `base_dir`.

    Raises
    ------
    StatementFaultError
        The count is invalid, a file of items cannot be read, or nothing matches.
    """
    found = _SOURCE.search(statement.text)
    if found is None:
        return QueueRequest(_count(statement, expand(statement.text)), None)
    head = _HEAD.fullmatch(expand(statement.text[: found.start()]).strip())
    if head is None:
        raise StatementFaultError(statement.line, f"not a queue statement: {statement.text}")
    count = _count(statement, head["count"])
    source, rest = found["source"].lower(), found["rest"]
    selected, rest = _item_slice(statement, rest)
    if source == "matching":
        lines = list(_matches(statement, base_dir, expand(_without_brackets(statement, rest))))
        variables = (head["variables"] or "Item").split()[0]
        items = [{variables: line} for line in lines]
    else:
        lines = _lines(statement, base_dir, source, rest, expand)
        items = split_items(head["variables"] or "", source, lines) if lines else []
    items = items[selected]
    if not items:
        raise StatementFaultError(statement.line, "the queue statement has no items")
    if len(items) > MAX_JOBS:
        raise StatementFaultError(statement.line, f"more than {MAX_JOBS} items")
    return QueueRequest(count, tuple(items))


def _count(statement: SubmitStatement, text: str) -> int:
    if not text.strip():
        return 1
    try:
        count = parse_value(text)
    except InvalidClassAdError:
        count = text
    if isinstance(count, bool) or not isinstance(count, int):
        raise StatementFaultError(
            statement.line, f"queue {statement.text:.60}: {text.strip():.60} is not a number of jobs"
        )
    if not 0 <= count <= LARGEST_COUNT:
        raise StatementFaultError(statement.line, f"queue {statement.text:.60}: {count} jobs are out of range")
    return count


def _item_slice(statement: SubmitStatement, rest: str) -> tuple[slice, str]:
    """Return the slice of the items, `[start:end:step]` as in Python, and the rest of the statement."""
    found = _SLICE.match(rest)
    if found is None:
        if rest.lstrip().startswith("["):
            raise StatementFaultError(statement.line, f"not a slice of items: {rest.strip()}")
        return slice(None), rest
    try:
        start, end, *step = (int(part) if part.strip() else None for part in found["parts"].split(":"))
        selected = slice(start, end, *step)
        selected.indices(1)
    except (TypeError, ValueError) as error:
        raise StatementFaultError(statement.line, f"[{found['parts']}] is not a slice of items") from error
    return selected, rest[found.end() :]


def _lines(statement: SubmitStatement, base_dir: Path, source: str, rest: str, expand: Expand) -> list[str]:
    if "(" in rest or source == "in":
        text = _without_brackets(statement, rest)
        return _item_lines([text, *statement.list_lines] if not statement.list_lines else statement.list_lines)
    path = expand(rest).strip()
    if path.endswith("|"):
        raise StatementFaultError(statement.line, "items from a command are not read: write them to a file first")
    return _item_lines(_lines_of_file(statement, base_dir / path, path))


def _lines_of_file(statement: SubmitStatement, path: Path, name: str) -> list[str]:
    try:
        return content_of(path).decode(errors="replace").split("\n")
    except (OSError, ValueError) as error:
        why = (error.strerror or "cannot be read").lower() if isinstance(error, OSError) else "not a file name"
        raise StatementFaultError(statement.line, f"the items' file {name}: {why}") from error


def _item_lines(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _without_brackets(statement: SubmitStatement, rest: str) -> str:
    if statement.list_lines:
        return " ".join(_item_lines(statement.list_lines))
    text = rest.strip()
    if text.startswith("("):
        inside, closing, behind = text[1:].rpartition(")")
        if not closing or (behind.strip() and not behind.lstrip().startswith("#")):
            raise StatementFaultError(statement.line, f"not a list of items: {text}")
        return inside
    return text


def _matches(statement: SubmitStatement, base_dir: Path, text: str) -> Iterator[str]:
    """Yield the matching files, each once; a folder's name ends with a slash, as in HTCondor."""
    found = _KIND_OF_MATCH.match(text)
    kind = found["kind"].lower() if found is not None else "any"
    patterns = (text[found.end() :] if found is not None else text).strip().removeprefix("(").removesuffix(")")
    seen: set[str] = set()
    for pattern in patterns.replace(",", " ").split():
        for name in sorted(iglob(pattern, root_dir=base_dir)):
            is_folder = (base_dir / name).is_dir()
            if name in seen or (kind == "files" and is_folder) or (kind == "dirs" and not is_folder):
                continue
            seen.add(name)
            yield f"{name.rstrip('/')}/" if is_folder else name
    if not seen:
        raise StatementFaultError(statement.line, f"nothing matches {patterns.strip() or 'an empty pattern'}")


_NUMBER_MACROS = ("Process", "ProcId", "Step", "Row", "ItemIndex")

NO_MACROS: Mapping[str, str] = MappingProxyType({})

_NO_QUEUE = "there is no queue statement"
_NOT_REPLACED = "$$(…) is not replaced by an attribute of the slot; read it in the job"
_DEEPEST_INCLUDE = 10
_INCLUDE = re.compile(r"(?P<head>\s*include\s*(?:ifexist\s*)?:\s*)(?P<path>.*?)\s*", re.IGNORECASE)

# The server assigns the id of a submission later: its macro is replaced by itself, in one spelling.
_IDS = dict.fromkeys(("Cluster", "ClusterId"), "$(DOLLAR)(Cluster)")
_PROCESS = "$(Process)"
_PROCESSES = dict.fromkeys(PROCESS_MACROS, "$(DOLLAR)(Process)")
_LOGS = frozenset({"log", "userlog"})


def read_submit(
    text: str,
    file: str,
    base_dir: Path,
    now: datetime,
    *,
    ignore_unsupported: bool = False,
    appended: Sequence[str] = (),
) -> list[JobDescription]:
    """Return the jobs that a submit file queues, in its order; equal jobs are one array.

    Files of items, patterns and included files are relative to `base_dir`. `now` is the time of submission for the
    file's macros. `appended` are statements that precede each queue statement, as with condor_submit -append.

    Raises
    ------
    ReadError
        With the first line of each faulty statement; `file` is the name of the text in the error.
    InvalidInputError
        An appended text is not a statement NAME = VALUE.
    """
    return SubmitFile(text, file, base_dir, now, appended=appended).jobs(ignore_unsupported=ignore_unsupported)


class SubmitFile:
    """A submit file, which may be read several times with other variables, as for the nodes of a DAG.

    `base_dir`, `now` and `appended` are as for `read_submit`. `not_replaced` = macros, folded, that are refused if they
    have no value, with the reasons.
    """

    def __init__(
        self,
        text: str,
        file: str,
        base_dir: Path,
        now: datetime,
        *,
        not_replaced: Mapping[str, str] = NO_MACROS,
        appended: Sequence[str] = (),
    ) -> None:
        self._file = file
        self._base_dir = base_dir
        self._predefined = _predefined_macros(file, now)
        self._not_replaced = not_replaced
        self._queues_by_variables: dict[tuple[object, ...], list[_Queue]] = {}
        self._faults: list[StatementFaultError] = []
        self._statements: list[SubmitStatement] = []
        self._duplicates: dict[int, list[str]] = {}
        appended_to_each = appended_statements(appended)
        try:
            found = _with_included_files(submit_statements(text), base_dir)
            self._duplicates = _duplicates(found)
            self._statements, self._faults = without_invalid(with_appended(found, appended_to_each))
        except StatementFaultError as fault:
            self._faults = [fault]
        self._parsed_names = names_that_parsing_uses(self._statements)

    def jobs(
        self,
        *,
        ignore_unsupported: bool = False,
        first: Mapping[str, str] = NO_MACROS,
        last: Mapping[str, str] = NO_MACROS,
        builtin: Mapping[str, str] = NO_MACROS,
    ) -> list[JobDescription]:
        """Return the jobs in order; equal ones are one array.

        `first` and `last` are variables that are set before and behind the text of the file, `builtin` ones that the
        file may define in another way.

        Raises
        ------
        ReadError
            With the first line of each faulty statement.
        """
        faults = FileFaults(self._file, ignore_unsupported=ignore_unsupported)
        jobs: list[JobDescription] = []
        for fault in self._faults:
            faults.add(fault.line, fault.cause)
        try:
            if self._statements:
                jobs = _merged(self._descriptions(first, last, builtin, faults))
            elif not self._faults:
                raise StatementFaultError(1, _NO_QUEUE)
        except StatementFaultError as fault:
            faults.add(fault.line, fault.cause)
        faults.raise_any()
        return jobs

    def _descriptions(
        self, first: Mapping[str, str], last: Mapping[str, str], builtin: Mapping[str, str], faults: FileFaults
    ) -> Iterator[JobDescription]:
        process, executable, jobs = 0, "", 0
        for queue in self._queues(first, last):
            program, statement = queue.program, queue.statement
            program.define_builtin(builtin)
            request = read_queue_statement(statement, self._base_dir, program.expand, program.split_items)
            if program.value("executable") != executable:  # another executable begins a new cluster
                process, executable = 0, program.value("executable")
            for draft in queue.drafts(request, process):
                faults.add_draft(draft)
                if faults.are_many:
                    return
                draft.put(continues_cluster=process > 0)
                description = draft.description()
                process += description.count or 1
                jobs += 1
                if jobs > MAX_JOBS or process > LARGEST_COUNT:
                    why = f"more than {MAX_JOBS} different jobs, {LARGEST_COUNT} in all"
                    raise StatementFaultError(statement.line, why)
                yield description
        if not jobs:
            raise StatementFaultError(self._statements[-1].line, "no job is queued")

    def _queues(self, first: Mapping[str, str], last: Mapping[str, str]) -> list[_Queue]:
        """Return the queue statements that are reached, with the variables set.

        Variables that only replace macros are set in a program that was parsed before; others are parsed.
        """
        parsed = {name: value for name, value in first.items() if fold(name) in self._parsed_names}
        others = {name: value for name, value in first.items() if name not in parsed} | dict(last)
        key = (*parsed.items(), *others)
        queues = self._queues_by_variables.get(key)
        if queues is None:
            statements = [*(assignment(*each) for each in parsed.items()), *self._statements]
            queues = self._queues_by_variables[key] = [
                _Queue(program, statement, self._duplicates[statement.line], self._not_replaced, {*first, *last})
                for statement in _queue_statements(statements)
                if (program := SubmitProgram(statements, statement)).is_reached
            ]
            for queue in queues:
                queue.program.define_builtin(self._predefined)
        for queue in queues:
            queue.program.define(others)
        return queues


def _queue_statements(statements: list[SubmitStatement]) -> list[SubmitStatement]:
    queues = [statement for statement in statements if statement.kind is StatementKind.QUEUE]
    if not queues:
        raise StatementFaultError(statements[-1].line, _NO_QUEUE)
    return queues


def _predefined_macros(file: str, now: datetime) -> dict[str, str]:
    """Return the macros that condor_submit defines for a whole file (its manual, pre-defined macros)."""
    moment = now.astimezone()
    dates = {"Year": f"{moment:%Y}", "Month": f"{moment:%m}", "Day": f"{moment:%d}"}
    return _IDS | dates | {"SUBMIT_TIME": str(int(now.timestamp())), "SUBMIT_FILE": file}


def _with_included_files(statements: list[SubmitStatement], base_dir: Path, depth: int = 0) -> list[SubmitStatement]:
    """Return the statements with included files inserted: HTCondor's parser would run an included command."""
    return [_included(each, base_dir, depth) if each.kind is StatementKind.INCLUDE else each for each in statements]


def _included(statement: SubmitStatement, base_dir: Path, depth: int) -> SubmitStatement:
    found = _INCLUDE.fullmatch(statement.text)
    if found is None or found["path"].endswith("|"):
        raise StatementFaultError(statement.line, "the output of a command is not included: write it to a file first")
    if depth == _DEEPEST_INCLUDE:
        raise StatementFaultError(statement.line, f"files include each other, deeper than {_DEEPEST_INCLUDE}")
    path = base_dir.absolute() / found["path"]
    if not os.path.exists(path):  # HTCondor's parser reports it, if an `if` does not skip it
        return replace(statement, lines=(f"{found['head']}{path}",))
    try:
        inner = _with_included_files(submit_statements(content_of(path).decode(errors="replace")), base_dir, depth + 1)
    except OSError as error:
        raise StatementFaultError(statement.line, f"{found['path']}: {(error.strerror or '').lower()}") from error
    except StatementFaultError as fault:
        raise StatementFaultError(statement.line, f"{found['path']}:{fault.line}: {fault.cause}") from fault
    if any(each.kind is StatementKind.QUEUE for each in inner):
        raise StatementFaultError(statement.line, f"{found['path']}: an included file cannot queue jobs")
    return replace(statement, lines=tuple(line for each in inner for line in each.lines))


class _Queue:
    """A queue statement: the program before it, and the commands in effect for the jobs of one item."""

    def __init__(
        self,
        program: SubmitProgram,
        statement: SubmitStatement,
        duplicates: list[str],
        not_replaced: Mapping[str, str],
        variables: set[str],
    ) -> None:
        self.program = program
        self.statement = statement
        self._duplicates = duplicates
        self._not_replaced = not_replaced
        # A variable that nothing uses is no attribute of the job, unless a command was meant.
        self._macros = frozenset(fold(name) for name in variables if not resembles_command(name))
        self._commands: _Commands | None = None

    def drafts(self, request: QueueRequest, process: int) -> Iterator[Draft]:
        """Yield the jobs; equal jobs of an item are one array."""
        program = self.program
        items = request.items or ({},)
        may_be_arrays = len(items) * request.count > 1
        for row, item in enumerate(items):
            program.define(item)
            if self._commands is None or self._commands.are_outdated():
                self._commands = _Commands(program, self.statement, self._not_replaced, self._macros)
            commands = self._commands
            array = _array(program, commands, row) if may_be_arrays else None
            may_be_arrays = array is not None
            if array is not None:
                yield _queued(array, request.count, self._duplicates)
                process += request.count
                continue
            together = 1 if commands.jobs_differ else max(request.count, 1)
            if request.count // together > MAX_JOBS:
                raise StatementFaultError(self.statement.line, f"more than {MAX_JOBS} different jobs")
            for step in range(0, request.count, together):
                numbers = map(str, (process, process, step, row, row))
                program.define_builtin(dict(zip(commands.number_macros, numbers, strict=False)))
                yield _queued(commands.draft(), together, self._duplicates)
                process += together


def _queued(draft: Draft, count: int, duplicates: list[str]) -> Draft:
    """Return the draft for so many jobs, with the warnings about repeated commands."""
    for warning in duplicates:
        draft.warn(warning)
    draft.put(count=count if count > 1 else None)
    return draft


def _array(program: SubmitProgram, commands: _Commands, row: int) -> Draft | None:
    """Return the jobs of an item as one array, whose numbers the server fills in; None = they differ in other ways."""
    if not (commands.jobs_differ and program.is_process_plain()):
        return None
    program.define_builtin({"Row": str(row), "ItemIndex": str(row), **_PROCESSES})
    draft = commands.draft()
    return draft if not draft.faults and _is_filled_in(draft.description()) else None


def _is_filled_in(description: JobDescription) -> bool:
    """Return whether `$(Process)` stands only in texts that the server fills in and that name no file here."""
    attributes = {
        name: Path(str(value)).parent if squashed(name) in _LOGS else value
        for name, value in description.attributes.items()
    }
    others = replace(
        description,
        arguments="",
        name="",
        environment=dict.fromkeys(description.environment, ""),
        stdout=None,
        stderr=None,
        output_files=(),
        attributes={},
    )
    return _PROCESS not in repr((attributes, others))


class _Commands:
    """The commands in effect at a queue statement, for the jobs of one item."""

    def __init__(
        self,
        program: SubmitProgram,
        queue: SubmitStatement,
        not_replaced: Mapping[str, str],
        macros: frozenset[str],
    ) -> None:
        self._program = program
        self._structure = program.structure
        references = program.references() | macros
        names = [name for name in program.names() if is_command(name) or fold(name) not in references]
        lines = ((program.line_of(name), name) for name in names)
        self._lines = sorted(lines, key=lambda each: (reading_order(each[1]), each))
        given = {squashed(name): line for line, name in self._lines}
        if "shell" in given and not given.keys().isdisjoint({"executable", "arguments"}):
            raise StatementFaultError(given["shell"], "shell: give either shell, or executable and arguments")
        if given.keys().isdisjoint({"executable", "shell", "containerimage", "dockerimage"}):
            raise StatementFaultError(queue.line, "there is no executable")
        self._names_output = "transferoutputfiles" in given
        self._says_shared = not given.keys().isdisjoint({"shouldtransferfiles", "my.shouldtransferfiles"})
        self.number_macros = _NUMBER_MACROS if references & set(map(fold, _NUMBER_MACROS)) else ()
        """The macros with the numbers of a job, if any of them is used."""
        undefined = program.undefined_macros()
        self._undefined = [macro for macro in undefined if fold(macro[2:-1]) not in not_replaced]
        self._refused = [(each, _NOT_REPLACED) for each in program.definitions_with("$$(")]
        for macro in undefined:
            if macro not in self._undefined:
                why = not_replaced[fold(macro[2:-1])]
                self._refused += ((each, why) for each in program.definitions_with(macro))
        self._errors, self._warnings = program.messages("error"), program.messages("warning")
        self.jobs_differ = program.jobs_differ()

    def are_outdated(self) -> bool:
        """Whether the present values of variables may have changed more than the values of commands."""
        return self._structure != self._program.structure or bool(self._errors or self._warnings)

    def draft(self) -> Draft:
        """Return the draft of the job for the present values of the program's macros."""
        draft = draft_of([SubmitCommand(name, self._program.value(name), line) for line, name in self._lines])
        for macro in self._undefined:
            draft.warn(f"{macro} has no value here")
        for (line, name, value), why in self._refused:
            draft.refuse(line, name, value, why)
        for line, text in self._errors:
            draft.faults.append((line, f"the file says: error: {text}"))
        for line, text in self._warnings:
            draft.warn(f"line {line} says: {text}")
        if not self._names_output and not (self._says_shared and _shares_files(draft)):
            draft.put(new_files_come_back=True)
        return draft


def _shares_files(draft: Draft) -> bool:
    """Return whether the job relies on a file system that the worker nodes share."""
    values = (value for name, value in draft.attributes.items() if squashed(name) == "shouldtransferfiles")
    return any(fold(str(value).strip('"')) in ("no", "false") for value in values)


def _duplicates(statements: list[SubmitStatement]) -> dict[int, list[str]]:
    """Return warnings about repeated commands, by the line of the queue statement that follows them.

    Commands under an `if` are skipped: they are often alternatives.
    """
    warnings: dict[int, list[str]] = {}
    given: dict[str, SubmitStatement] = {}
    found: list[str] = []
    depth = 0
    for statement in statements:
        depth += (statement.kind is StatementKind.IF) - (statement.kind is StatementKind.ENDIF)
        if statement.kind is StatementKind.QUEUE:
            warnings[statement.line] = found
            given, found = {}, []
        elif statement.kind is StatementKind.ASSIGN and not depth and is_command(statement.name):
            earlier = given.get(squashed(statement.name))
            given[squashed(statement.name)] = statement
            if earlier is not None and f"$({statement.name}" not in fold(statement.text):
                found.append(
                    f"{statement.name} is given twice: line {statement.line} counts, "
                    f"line {earlier.line} said {earlier.text.partition('=')[2].strip()}"
                )
    return warnings


def _merged(descriptions: Iterator[JobDescription]) -> list[JobDescription]:
    """Return the descriptions, with each run of equal ones merged to an array."""
    merged: list[JobDescription] = []
    for description in descriptions:
        last = merged[-1] if merged else None
        if last is not None and _are_equal(last, description):
            merged[-1] = replace(last, count=(last.count or 1) + (description.count or 1))
        else:
            merged.append(description)
    return merged


def _are_equal(last: JobDescription, description: JobDescription) -> bool:
    if last.arguments != description.arguments or last.attributes != description.attributes:
        return False  # the comparison of all fields copies them
    # Equal jobs are of one cluster, as another one begins with another executable.
    continues = last.continues_cluster
    return replace(last, count=None) == replace(description, count=None, continues_cluster=continues)
