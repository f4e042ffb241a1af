"""HTCondor submit files: text in, job descriptions out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage.resources import LARGEST_COUNT
from pilotage_client.bounded_files import content_of
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.read_error import ReadError, StatementFaultError
from pilotage_client.readers.submit_commands import draft_of, is_command, squashed
from pilotage_client.readers.submit_meanings import Command
from pilotage_client.readers.submit_program import SubmitProgram
from pilotage_client.readers.submit_queue import MOST_JOBS, Queued, queued
from pilotage_client.readers.submit_text import Kind, Statement, submit_statements

_DEEPEST_INCLUDE = 10
_INCLUDE = re.compile(r"(?P<head>\s*include\s*(?:ifexist\s*)?:\s*)(?P<path>.*?)\s*", re.IGNORECASE)

# The server knows the id of a submission first: until then its macro stands for itself, in one spelling.
_IDS = dict.fromkeys(("Cluster", "ClusterId"), "$(DOLLAR)(Cluster)")


def read_submit(text: str, file: str, base_dir: Path, now: datetime) -> list[JobDescription]:
    """Return the jobs that a submit file queues, in its order; jobs that are alike are one array.

    Files of items, patterns and included files are looked for from `base_dir` on. `now` is the time that the
    file's macros call the time of submission.

    Raises
    ------
    ReadError
        With the first line of the statement at fault; `file` is what it calls the text.
    """
    try:
        statements = _with_included_files(submit_statements(text), base_dir)
        return _merged(_descriptions(statements, base_dir, _given_macros(file, now)))
    except StatementFaultError as fault:
        raise ReadError(file, fault.line, fault.cause) from fault


def _given_macros(file: str, now: datetime) -> dict[str, str]:
    """Return the macros that condor_submit gives a value for a whole file (its manual, pre-defined macros)."""
    moment = now.astimezone()
    dates = {"Year": f"{moment:%Y}", "Month": f"{moment:%m}", "Day": f"{moment:%d}"}
    return _IDS | dates | {"SUBMIT_TIME": str(int(now.timestamp())), "SUBMIT_FILE": file}


def _with_included_files(statements: list[Statement], base_dir: Path, depth: int = 0) -> list[Statement]:
    """Return the statements with included files in place: HTCondor's parser would run a command that one includes."""
    return [_included(each, base_dir, depth) if each.kind is Kind.INCLUDE else each for each in statements]


def _included(statement: Statement, base_dir: Path, depth: int) -> Statement:
    found = _INCLUDE.fullmatch(statement.text)
    if found is None or found["path"].endswith("|"):
        raise StatementFaultError(statement.line, "what a command prints is not included: write it to a file first")
    if depth == _DEEPEST_INCLUDE:
        raise StatementFaultError(statement.line, f"files include each other, deeper than {_DEEPEST_INCLUDE}")
    path = base_dir.absolute() / found["path"]
    if not path.exists():  # an error only where the parser comes by
        return replace(statement, lines=(f"{found['head']}{path}",))
    try:
        inner = _with_included_files(submit_statements(content_of(path).decode(errors="replace")), base_dir, depth + 1)
    except OSError as error:
        raise StatementFaultError(statement.line, f"{found['path']}: {(error.strerror or '').lower()}") from error
    except StatementFaultError as fault:
        raise StatementFaultError(statement.line, f"{found['path']}:{fault.line}: {fault.cause}") from fault
    if any(each.kind is Kind.QUEUE for each in inner):
        raise StatementFaultError(statement.line, f"{found['path']}: an included file cannot queue jobs")
    return replace(statement, lines=tuple(line for each in inner for line in each.lines))


def _descriptions(statements: list[Statement], base_dir: Path, given: Mapping[str, str]) -> Iterator[JobDescription]:
    queues = [statement for statement in statements if statement.kind is Kind.QUEUE]
    if not queues:
        raise StatementFaultError(statements[-1].line if statements else 1, "there is no queue statement")
    process, executable, jobs = 0, "", 0
    duplicates = _duplicates(statements)
    for queue in queues:
        program = SubmitProgram(statements, queue)
        if not program.is_reached:
            continue
        program.define_live(given)
        wanted = queued(queue, base_dir, program.expand, program.split_items)
        if program.value("executable") != executable:  # another executable begins another cluster
            process, executable = 0, program.value("executable")
        for description in _jobs_of_queue(program, queue, wanted, process, duplicates[queue.line]):
            process += description.count or 1
            jobs += 1
            if jobs > MOST_JOBS or process > LARGEST_COUNT:
                raise StatementFaultError(queue.line, f"more than {MOST_JOBS} different jobs, {LARGEST_COUNT} in all")
            yield description
    if not jobs:
        raise StatementFaultError(queues[-1].line, "no job is queued")


def _jobs_of_queue(
    program: SubmitProgram, queue: Statement, wanted: Queued, process: int, duplicates: list[str]
) -> Iterator[JobDescription]:
    """Yield the jobs of one queue statement; those of an item are one array where nothing tells them apart."""
    for row, item in enumerate(wanted.items or ({},)):
        program.define(item)
        commands = _Commands(program, queue)
        together = 1 if program.varies() else max(wanted.count, 1)
        if wanted.count // together > MOST_JOBS:
            raise StatementFaultError(queue.line, f"more than {MOST_JOBS} different jobs")
        for step in range(0, wanted.count, together):
            numbers = {"Process": process, "ProcId": process, "Step": step, "Row": row, "ItemIndex": row}
            program.define_live({name: str(number) for name, number in numbers.items()})
            draft = commands.draft()
            for warning in duplicates:
                draft.warn(warning)
            yield replace(draft.description(), count=together if together > 1 else None)
            process += together


class _Commands:
    """The commands that hold at a queue statement, for the jobs of one item."""

    def __init__(self, program: SubmitProgram, queue: Statement) -> None:
        self._program = program
        references = program.references()
        names = [name for name in program.names() if is_command(name) or fold(name) not in references]
        self._lines = sorted((program.line_of(name), name) for name in names)
        given = {squashed(name) for name in names}
        if "executable" not in given:
            raise StatementFaultError(queue.line, "there is no executable")
        self._names_output = not given.isdisjoint({"transferoutputfiles", "transferoutput"})
        self._undefined = program.undefined_macros()
        self._at_match = program.has_match_time_macros()

    def draft(self) -> Draft:
        """Return the draft of the job for the numbers that the program's macros have now."""
        draft = draft_of([Command(name, self._program.value(name), line) for line, name in self._lines])
        for macro in self._undefined:
            draft.warn(f"{macro} has no value here")
        if self._at_match:
            draft.warn("$$(…) is not replaced by what the slot says")
        if not self._names_output and not _shares_files(draft):
            draft.put(new_files_come_back=True)
        return draft


def _shares_files(draft: Draft) -> bool:
    """Say whether the owner relies on a file system that the worker nodes share."""
    said = (value for name, value in draft.attributes.items() if squashed(name) == "shouldtransferfiles")
    return any(fold(str(value)) in ("no", "false") for value in said)


def _duplicates(statements: list[Statement]) -> dict[int, list[str]]:
    """Return by the line of each queue statement a warning for each command given twice since the one before it.

    What stands under an `if` is left out: there it often is an alternative.
    """
    warnings: dict[int, list[str]] = {}
    given: dict[str, Statement] = {}
    found: list[str] = []
    depth = 0
    for statement in statements:
        depth += (statement.kind is Kind.IF) - (statement.kind is Kind.ENDIF)
        if statement.kind is Kind.QUEUE:
            warnings[statement.line] = found
            given, found = {}, []
        elif statement.kind is Kind.ASSIGN and not depth and is_command(statement.name):
            earlier = given.get(squashed(statement.name))
            given[squashed(statement.name)] = statement
            if earlier is not None and f"$({statement.name}" not in fold(statement.text):
                found.append(
                    f"{statement.name} is given twice: line {statement.line} counts, "
                    f"line {earlier.line} said {earlier.text.partition('=')[2].strip()}"
                )
    return warnings


def _merged(descriptions: Iterator[JobDescription]) -> list[JobDescription]:
    """Return the descriptions, each run of equal ones as one array."""
    merged: list[JobDescription] = []
    for description in descriptions:
        if merged and replace(merged[-1], count=None) == replace(description, count=None):
            merged[-1] = replace(description, count=(merged[-1].count or 1) + (description.count or 1))
        else:
            merged.append(description)
    return merged
