"""What a command of a submit file can mean for a job."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from pilotage.arguments import join_arguments
from pilotage.classad_evaluation import bounded
from pilotage.classads import AdValue, Expression, InvalidClassAdError, expression_from_old_syntax, parse_value
from pilotage.condor_quoting import argument_words, environment_settings
from pilotage.errors import InvalidRequirementsError
from pilotage.folding import fold
from pilotage.job_description import InputFile
from pilotage.resources import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.readers.draft import NO_MEANING, Draft
from pilotage_client.readers.jdl_values import as_attribute
from pilotage_client.readers.read_error import StatementFaultError


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its macros replaced; `line` is where it was given."""

    name: str
    value: str
    line: int

    def fault(self, cause: object) -> StatementFaultError:
        """Return the error that points at this command."""
        return StatementFaultError(self.line, f"{self.name}: {cause}")


Meaning = Callable[[Draft, Command], None]
"""Puts what a command says into a draft; raises StatementFaultError where it says nothing that can be."""

_REMOTE = re.compile(r"[A-Za-z][\w+.-]*://")
_AMOUNT = re.compile(r"[+-]?[\d.]+\s*[a-z]*", re.IGNORECASE | re.ASCII)
_NULL_DEVICE = "/dev/null"
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_NO_NUMBER = "is an expression, not a number, and is kept as an attribute"


def keep(draft: Draft, command: Command) -> None:
    """Keep a command that means nothing here, and warn unless it is empty."""
    draft.keep(command.name, command.value, NO_MEANING if command.value else None)


def keep_quietly(draft: Draft, command: Command) -> None:
    """Keep a command that is heeded, or that says what happens here anyway."""
    draft.keep(command.name, command.value)


def kept_because(warning: str) -> Meaning:
    """Return the meaning of a command that is kept, with `warning` unless it is empty."""

    def put(draft: Draft, command: Command) -> None:
        draft.keep(command.name, command.value, warning if command.value else None)

    return put


def kept_as(name: str, warning: str) -> Meaning:
    """Return the meaning of a command whose text is kept as the attribute `name`, with `warning` unless it is empty."""

    def put(draft: Draft, command: Command) -> None:
        if command.value:
            draft.keep(name, command.value)
            draft.warn(f"{command.name} {warning}")

    return put


def kept_unless(*ordinary: str, warning: str = NO_MEANING) -> Meaning:
    """Return the meaning of a command that is kept, with `warning` unless it says what happens here anyway."""

    def put(draft: Draft, command: Command) -> None:
        is_ordinary = not command.value or fold(command.value) in ordinary
        draft.keep(command.name, command.value, None if is_ordinary else warning)

    return put


def kept_too(meaning: Meaning) -> Meaning:
    """Return a meaning whose command is kept as it was written, too: `convert` has no key for what it sets."""

    def put(draft: Draft, command: Command) -> None:
        meaning(draft, command)
        draft.keep(command.name, command.value)

    return put


def switch(*, ordinary: bool, warning: str = NO_MEANING) -> Meaning:
    """Return the meaning of a true or false that only warns when it is not as jobs are here anyway."""
    return kept_unless(*(_TRUE if ordinary else _FALSE), warning=warning)


def text(field: str) -> Meaning:
    """Return the meaning of a text that is `field` of the description."""

    def put(draft: Draft, command: Command) -> None:
        if command.value:
            draft.put(**{field: command.value.strip('"')})

    return put


def executable(draft: Draft, command: Command) -> None:
    """Put the executable, which must not be empty."""
    if not command.value:
        raise command.fault("is empty")
    draft.put(executable=command.value.strip('"'))


def arguments(draft: Draft, command: Command) -> None:
    """Put the arguments, in either syntax."""
    try:
        draft.put(arguments=join_arguments(argument_words(command.value)))
    except ValueError as error:
        raise command.fault(error) from error


def environment(draft: Draft, command: Command) -> None:
    """Put the environment, in either syntax."""
    try:
        draft.environment.update(environment_settings(command.value))
    except ValueError as error:
        raise command.fault(error) from error


def standard_input(draft: Draft, command: Command) -> None:
    """Put a file of the submitter that becomes the standard input."""
    if command.value == _NULL_DEVICE:
        draft.put(stdin=command.value)
    elif command.value:
        draft.put(stdin=PurePosixPath(command.value).name)
        _add_input_file(draft, command.value)


def input_files(draft: Draft, command: Command) -> None:
    """Put the files that travel with the job; those that a worker node would fetch are kept by name only."""
    paths = _listed(command)
    remote = tuple(path for path in paths if _REMOTE.match(path))
    for path in paths:
        if path not in remote:
            _add_input_file(draft, path)
    if remote:
        draft.keep(command.name, remote, f"names files that are not fetched: {', '.join(remote)}")


def _add_input_file(draft: Draft, path: str) -> None:
    # A folder with a slash behind it means what is in it (condor_submit manual, transfer_input_files).
    name = "." if path.endswith("/") else PurePosixPath(path).name or "."
    if all(file.source != path for file in draft.input_files):
        draft.input_files.append(InputFile(name, source=path))


def output_files(draft: Draft, command: Command) -> None:
    """Put the files that come back; `""` says that none do."""
    draft.output_files.extend(name for name in _listed(command) if name not in draft.output_files)
    if not draft.output_files:
        draft.keep(command.name, command.value)


def _listed(command: Command) -> list[str]:
    parts = (part.strip() for part in command.value.strip().strip('"').split(","))
    return [part for part in parts if part]


def requirements(draft: Draft, command: Command) -> None:
    """Put the expression over a slot's attributes; `true` asks for nothing."""
    expression = _expression(command)
    if fold(expression) == "true":
        draft.keep(command.name, value=True)
    elif expression:
        draft.put(requirements_expression=expression)


def rank(draft: Draft, command: Command) -> None:
    """Put the expression that orders slots."""
    expression = _expression(command)
    if expression:
        draft.put(rank=expression)


def policy(field: str) -> Meaning:
    """Return the meaning of an expression that is `field` of the job's policy."""

    def put(draft: Draft, command: Command) -> None:
        expression = _expression(command)
        if not expression:
            return
        try:
            bounded(expression)
        except InvalidClassAdError as error:
            raise command.fault(error) from error
        draft.put_policy(**{field: expression})

    return put


def attribute(name: str) -> Meaning:
    """Return the meaning of a command that sets the attribute `name` of the job."""

    def put(draft: Draft, command: Command) -> None:
        own_attribute(draft, Command(name, command.value, command.line))

    return put


def _expression(command: Command) -> str:
    if not command.value:
        return ""
    try:
        return expression_from_old_syntax(" ".join(command.value.split("\n")))
    except InvalidClassAdError as error:
        raise command.fault(error) from error


def _literal(command: Command) -> AdValue:
    """Return the value of a command that is an expression; only what is no literal stays one."""
    return parse_value(_expression(command))


def count(field: str) -> Meaning:
    """Return the meaning of a number of things; an expression over a slot's attributes is kept."""
    return _measured(field, lambda value: parse_whole_number(value, least=0))


def size(field: str, unit: str) -> Meaning:
    """Return the meaning of a size that has `unit` when it is written without one; an expression is kept."""

    def measure(value: object) -> int:
        has_unit = isinstance(value, str) and value[-1:].isalpha()
        return parse_size_mib(value if has_unit else f"{value} {unit}")

    return _measured(field, measure)


def duration(field: str) -> Meaning:
    """Return the meaning of a time in seconds; an expression is kept."""
    return _measured(field, parse_duration)


def priority(draft: Draft, command: Command) -> None:
    """Put the priority among the owner's jobs."""
    _measured("priority", parse_whole_number)(draft, command)


def _measured(field: str, measure: Callable[[object], object]) -> Meaning:
    """Return the meaning of an amount, which may be written as arithmetic; what is no number is kept."""

    def put(draft: Draft, command: Command) -> None:
        if not command.value:
            draft.keep(command.name, "")
            return
        amount = command.value if _AMOUNT.fullmatch(command.value) else _literal(command)
        if isinstance(amount, Expression):
            draft.keep(command.name, command.value, _NO_NUMBER)
            return
        try:
            draft.put(**{field: measure(amount)})
        except InvalidRequirementsError as error:
            raise command.fault(error) from error

    return put


def hold(draft: Draft, command: Command) -> None:
    """Hold the job at submission."""
    if fold(command.value) in _TRUE:
        draft.put(hold=True)
    else:
        draft.keep(command.name, command.value, None if fold(command.value) in _FALSE else NO_MEANING)


def own_attribute(draft: Draft, command: Command) -> None:
    """Keep an attribute that the owner adds to the job (`+Name`); a value that is no literal is kept as text."""
    if not command.value:
        draft.keep(command.name, "")
        return
    value = _literal(command)
    is_literal = not isinstance(value, Expression)
    draft.keep(command.name, as_attribute(value), None if is_literal else "is an expression and is kept as its text")
