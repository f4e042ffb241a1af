"""Handlers of submit commands: each puts the value of one command into the draft of a job."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, expression_from_old_syntax, parse_value
from pilotage.condor.quoting import argument_words, environment_settings, join_arguments
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import InputFile
from pilotage.text import fold
from pilotage.units import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.readers.draft import UNUSED_WARNING, Draft, StatementFaultError
from pilotage_client.readers.jdl_text import as_attribute


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """A command with its macros replaced, from `line`."""

    name: str
    value: str
    line: int

    def fault(self, cause: object) -> StatementFaultError:
        """Return an error at this command."""
        return StatementFaultError(self.line, f"{self.name}: {cause}")


SubmitHandler = Callable[[Draft, SubmitCommand], None]
"""Puts a command into a draft; raises StatementFaultError for an invalid value."""

_REMOTE = re.compile(r"[A-Za-z][\w+.-]*://")
_AMOUNT = re.compile(r"[+-]?[\d.]+\s*[a-z]*", re.IGNORECASE | re.ASCII)
_NULL_DEVICE = "/dev/null"
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_OF_CONTAINERS = ("container", "docker")
_ORDINARY_PROCESS = "is kept as an attribute; the job runs as an ordinary process"
_NO_NUMBER = "is an expression, not a number, and is kept as an attribute"


def keep(draft: Draft, command: SubmitCommand) -> None:
    """Keep a command that nothing uses, and warn unless it is empty."""
    draft.keep(command.name, command.value, UNUSED_WARNING if command.value else None)


def keep_silently(draft: Draft, command: SubmitCommand) -> None:
    """Keep a command that is read by name, or that matches the behaviour here."""
    draft.keep(command.name, command.value)


def keep_with_warning(warning: str) -> SubmitHandler:
    """Return a handler that keeps a command, with `warning` unless it is empty."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        draft.keep(command.name, command.value, warning if command.value else None)

    return put


def keep_as(name: str, warning: str) -> SubmitHandler:
    """Return a handler that keeps a command as the attribute `name`, with `warning`, unless it is empty."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        if command.value:
            draft.keep(name, command.value)
            draft.warn(f"{command.name} {warning}")

    return put


def keep_unless(*ordinary: str, warning: str = UNUSED_WARNING) -> SubmitHandler:
    """Return a handler that keeps a command, with `warning` unless it is empty or has an `ordinary` value."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        is_ordinary = not command.value or fold(command.value) in ordinary
        draft.keep(command.name, command.value, None if is_ordinary else warning)

    return put


def also_keep(handler: SubmitHandler) -> SubmitHandler:
    """Return a handler that also keeps the command as written, since `convert` has no key for the field."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        handler(draft, command)
        draft.keep(command.name, command.value)

    return put


def switch(*, ordinary: bool, warning: str = UNUSED_WARNING) -> SubmitHandler:
    """Return a handler that keeps a true or false, with `warning` unless it is `ordinary`."""
    return keep_unless(*(_TRUE if ordinary else _FALSE), warning=warning)


def text(field: str) -> SubmitHandler:
    """Return a handler of a text that sets `field` of the description."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        if command.value:
            draft.put(**{field: command.value.strip('"')})

    return put


def executable(draft: Draft, command: SubmitCommand) -> None:
    """Set the executable, which must not be empty."""
    if not command.value:
        raise command.fault("is empty")
    draft.put(executable=command.value.strip('"'))


def image(draft: Draft, command: SubmitCommand) -> None:
    """Set the container image: a name in a registry, or a file or folder."""
    text = command.value.strip('"')
    if text and (why := draft.put_image(text)):
        raise command.fault(why)
    draft.keep(command.name, text)


def universe(draft: Draft, command: SubmitCommand) -> None:
    """Keep the universe; that of containers needs an image, which its command has set before."""
    if fold(command.value) in _OF_CONTAINERS and "image" not in draft.fields:
        raise command.fault(f"{command.value} needs an image: add container_image or docker_image")
    keep_unless("vanilla", "5", *_OF_CONTAINERS, warning=_ORDINARY_PROCESS)(draft, command)


def arguments(draft: Draft, command: SubmitCommand) -> None:
    """Set the arguments, in old or new syntax."""
    try:
        draft.put(arguments=join_arguments(argument_words(command.value)))
    except ValueError as error:
        raise command.fault(error) from error


def environment(draft: Draft, command: SubmitCommand) -> None:
    """Add to the environment, in old or new syntax."""
    try:
        draft.environment.update(environment_settings(command.value))
    except ValueError as error:
        raise command.fault(error) from error


def standard_input(draft: Draft, command: SubmitCommand) -> None:
    """Set the standard input, an input file of the job."""
    if command.value == _NULL_DEVICE:
        draft.put(stdin=command.value)
    elif command.value:
        draft.put(stdin=PurePosixPath(command.value).name)
        _add_input_file(draft, command.value)


def input_files(draft: Draft, command: SubmitCommand) -> None:
    """Add input files; URLs, which a worker node would fetch, are only kept."""
    paths = _list_items(command)
    remote = tuple(path for path in paths if _REMOTE.match(path))
    for path in paths:
        if path not in remote:
            _add_input_file(draft, path)
    if remote:
        draft.keep(command.name, remote, f"names files that are not fetched: {', '.join(remote)}")


def _add_input_file(draft: Draft, path: str) -> None:
    # A folder with a slash at its end means its content (condor_submit manual, transfer_input_files).
    name = "." if path.endswith("/") else PurePosixPath(path).name or "."
    if all(file.source != path for file in draft.input_files):
        draft.input_files.append(InputFile(name, source=path))


def output_files(draft: Draft, command: SubmitCommand) -> None:
    """Add output files; `""` means none."""
    draft.output_files.extend(name for name in _list_items(command) if name not in draft.output_files)
    if not draft.output_files:
        draft.keep(command.name, command.value)


def _list_items(command: SubmitCommand) -> list[str]:
    parts = (part.strip() for part in command.value.strip().strip('"').split(","))
    return [part for part in parts if part]


def requirements(draft: Draft, command: SubmitCommand) -> None:
    """Set the requirements expression over a slot's attributes; `true` requires nothing."""
    expression = _expression(command)
    if fold(expression) == "true":
        draft.keep(command.name, value=True)
    elif expression:
        draft.put(requirements_expression=expression)


def rank(draft: Draft, command: SubmitCommand) -> None:
    """Set the expression that orders slots."""
    expression = _expression(command)
    if expression:
        draft.put(rank=expression)


def policy(field: str) -> SubmitHandler:
    """Return a handler of an expression that sets `field` of the job's policy."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        expression = _expression(command)
        if not expression:
            return
        try:
            compile_bounded(expression)
        except InvalidClassAdError as error:
            raise command.fault(error) from error
        draft.put_policy(**{field: expression})

    return put


def attribute(name: str) -> SubmitHandler:
    """Return a handler of a command that sets the attribute `name` of the job."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        custom_attribute(draft, SubmitCommand(name, command.value, command.line))

    return put


def _expression(command: SubmitCommand) -> str:
    if not command.value:
        return ""
    try:
        return expression_from_old_syntax(" ".join(command.value.split("\n")))
    except InvalidClassAdError as error:
        raise command.fault(error) from error


def _literal(command: SubmitCommand) -> AdValue:
    """Return the value of a command: a literal, or an unevaluated expression."""
    return parse_value(_expression(command))


def count(field: str) -> SubmitHandler:
    """Return a handler of a whole number; an expression over a slot's attributes is kept."""
    return _measured(field, lambda value: parse_whole_number(value, least=0))


def size(field: str, unit: str) -> SubmitHandler:
    """Return a handler of a size, in `unit` if written without a unit; an expression is kept."""

    def measure(value: object) -> int:
        has_unit = isinstance(value, str) and value[-1:].isalpha()
        return parse_size_mib(value if has_unit else f"{value} {unit}")

    return _measured(field, measure)


def duration(field: str) -> SubmitHandler:
    """Return a handler of a time in seconds; an expression is kept."""
    return _measured(field, parse_duration)


def priority(draft: Draft, command: SubmitCommand) -> None:
    """Set the priority among the owner's jobs."""
    _measured("priority", parse_whole_number)(draft, command)


def _measured(field: str, measure: Callable[[object], object]) -> SubmitHandler:
    """Return a handler of an amount, which may be written as arithmetic; other expressions are kept."""

    def put(draft: Draft, command: SubmitCommand) -> None:
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


def hold(draft: Draft, command: SubmitCommand) -> None:
    """Set whether the job is held at submission."""
    if fold(command.value) in _TRUE:
        draft.put(hold=True)
    else:
        draft.keep(command.name, command.value, None if fold(command.value) in _FALSE else UNUSED_WARNING)


def custom_attribute(draft: Draft, command: SubmitCommand) -> None:
    """Keep a custom attribute (`+Name`); a value that is not a literal is kept as text."""
    if not command.value:
        draft.keep(command.name, "")
        return
    value = _literal(command)
    is_literal = not isinstance(value, Expression)
    draft.keep(command.name, as_attribute(value), None if is_literal else "is an expression and is kept as its text")
