"""Handlers of submit commands: each puts the value of one command into the draft of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath

from pilotage.classads.evaluation import Ad, compile_bounded, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, expression_from_old_syntax, parse_value
from pilotage.classads.references import references
from pilotage.classads.tokens import calls
from pilotage.condor.quoting import argument_words, environment_settings, join_arguments
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import InputFile
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.text import fold
from pilotage.units import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.readers.draft import UNUSED_WARNING, USER_LOG, Draft, StatementFaultError
from pilotage_client.readers.jdl_text import as_attribute
from pilotage_client.readers.support import FALSE_WORDS, TRUE_WORDS


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
_CACHED_AMOUNTS = 100
_AMOUNT = re.compile(r"[+-]?[\d.]+\s*[a-z]*", re.IGNORECASE | re.ASCII)
_NULL_DEVICE = "/dev/null"
_NO_NUMBER = "it is an expression over more than the job's own attributes, and only a number is read"
_OF_CONTAINERS = ("container", "docker")
_OWN_VARIABLES = "PILOTAGE_"
"""Variables of the submitter's environment that never travel: they hold the token."""


def keep_unknown(similar: str | None) -> SubmitHandler:
    """Return a handler that keeps a command that nothing uses; `similar` is the command that may be meant."""
    return keep_with_warning(UNUSED_WARNING if similar is None else f"{UNUSED_WARNING}; did you mean {similar}?")


def refuse(why: str, *unless: str) -> SubmitHandler:
    """Return a handler that refuses a command, unless its value is empty or one of `unless`."""

    def put(draft: Draft, command: SubmitCommand) -> None:
        draft.keep(command.name, command.value)
        value = fold(command.value.strip('"'))
        if value not in ("", "undefined", *unless):
            draft.refuse(command.line, command.name, command.value, why)

    return put


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


def truth_value(draft: Draft, command: SubmitCommand) -> bool:
    """Keep a command that must be true or false, and return its value; empty = false."""
    draft.keep(command.name, command.value)
    if fold(command.value) not in TRUE_WORDS | FALSE_WORDS | {""}:
        raise command.fault(f"{command.value} is neither true nor false")
    return fold(command.value) in TRUE_WORDS


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


def shell(draft: Draft, command: SubmitCommand) -> None:
    """Run a command line of the node's shell; there is no other executable to transfer."""
    if not command.value:
        raise command.fault("is empty")
    draft.put(executable="/bin/sh", arguments=join_arguments(["-c", command.value]))
    draft.keep("transfer_executable", "false")


def image(draft: Draft, command: SubmitCommand) -> None:
    """Set the container image: a name in a registry, or a file or folder."""
    draft.read_image(command.line, command.name, command.value.strip('"'))


def universe(draft: Draft, command: SubmitCommand) -> None:
    """Keep the universe; that of containers needs an image, which its command has set before."""
    if fold(command.value) in _OF_CONTAINERS and "image" not in draft.fields:
        refuse("it needs an image: add a valid container_image or docker_image")(draft, command)
    else:
        why = "only vanilla jobs and containers run; remove this line if the program is an ordinary one"
        refuse(why, "vanilla", "5", *_OF_CONTAINERS)(draft, command)


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


def inherited_environment(draft: Draft, command: SubmitCommand) -> None:
    """Copy the submitter's environment, or the variables that match one of the patterns; `!PATTERN` excludes.

    The command environment takes precedence.
    """
    draft.keep(command.name, command.value)
    if fold(command.value) in FALSE_WORDS:
        return
    patterns = ["*"] if fold(command.value) in TRUE_WORDS else _list_items(command)
    excluded = [f"{_OWN_VARIABLES}*", *(each[1:] for each in patterns if each.startswith("!"))]
    wanted = [each for each in patterns if not each.startswith("!")] or ["*"] * bool(patterns)
    copied = {name: value for name, value in os.environ.items() if _matches(name, wanted)}
    copied = {name: value for name, value in copied.items() if not _matches(name, excluded)}
    draft.environment = copied | draft.environment


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(fold(name), fold(pattern)) for pattern in patterns)


def transfer_input(draft: Draft, command: SubmitCommand) -> None:
    """Read whether the standard input is transferred; a file of the worker node cannot be one."""
    if not truth_value(draft, command) and command.value and draft.fields.get("stdin") not in (None, _NULL_DEVICE):
        why = "the standard input is always a transferred file; remove this line, or let the program open its file"
        draft.refuse(command.line, command.name, command.value, why)


def stream_transfer(draft: Draft, command: SubmitCommand) -> None:
    """Read whether an output stream is transferred; it always is."""
    if not truth_value(draft, command) and command.value:
        draft.warn(f"{command.name} is kept as an attribute; the standard streams are always returned")


def standard_input(draft: Draft, command: SubmitCommand) -> None:
    """Set the standard input, an input file of the job."""
    if command.value == _NULL_DEVICE:
        draft.put(stdin=command.value)
    elif command.value:
        draft.put(stdin=PurePosixPath(command.value).name)
        _add_input_file(draft, command.value)


def user_log(draft: Draft, command: SubmitCommand) -> None:
    """Set the attribute with the path of the user log."""
    if command.value:
        draft.keep(USER_LOG, command.value.strip('"'))


_OCCASIONS = {
    "never": frozenset[Occasion](),
    "complete": frozenset({Occasion.END}),
    "error": frozenset({Occasion.FAILURE, Occasion.HOLD}),
    "always": frozenset({Occasion.END, Occasion.HOLD}),
}
"""What the values of `notification` mean here (condor_submit manual)."""


def notify_user(draft: Draft, command: SubmitCommand) -> None:
    """Set the mail addresses of notifications."""
    draft.keep(command.name, command.value)
    if addresses := command.value.strip('"').replace(",", " ").split():
        draft.mail_addresses = tuple(addresses)


def notification(draft: Draft, command: SubmitCommand) -> None:
    """Ask for mail, to the addresses that are set before."""
    draft.keep(command.name, command.value)
    occasions = _OCCASIONS.get(fold(command.value.strip('"')) or "never")
    if occasions is None:
        raise command.fault(f"{command.value} is none of Always, Complete, Error, Never")
    wanted = tuple(NewSubscription(RecipientKind.MAIL, each, occasions) for each in draft.mail_addresses if occasions)
    for each in wanted:
        if each.fault:
            raise command.fault(f"notify_user: {each.fault}")
    draft.put(notify=wanted)


def input_files(draft: Draft, command: SubmitCommand) -> None:
    """Add input files; URLs, which a worker node would fetch, are refused."""
    paths = _list_items(command)
    remote = tuple(path for path in paths if _REMOTE.match(path))
    for path in paths:
        if path not in remote:
            _add_input_file(draft, path)
    if remote:
        draft.keep(command.name, remote)
        why = "the worker node fetches no URLs; name a local file, or fetch it in the job"
        draft.refuse(command.line, command.name, ", ".join(remote), why)


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


def count(field: str, least: int = 0) -> SubmitHandler:
    """Return a handler of a whole number; an expression is refused."""
    return _measured(field, lambda value: parse_whole_number(value, least=least))


def retry_until(draft: Draft, command: SubmitCommand) -> None:
    """Set the exit code or the expression that ends the retries."""
    expression = _expression(command)
    if not expression:
        return
    try:
        compile_bounded(expression)
    except InvalidClassAdError as error:
        raise command.fault(error) from error
    draft.put(retry_until=expression)


def size(field: str, unit: str) -> SubmitHandler:
    """Return a handler of a size, in `unit` if written without a unit; an expression is refused."""

    def measure(value: object) -> int:
        has_unit = isinstance(value, str) and value[-1:].isalpha()
        return parse_size_mib(value if has_unit else f"{value} {unit}")

    return _measured(field, measure)


def duration(field: str) -> SubmitHandler:
    """Return a handler of a time in seconds; an expression is refused."""
    return _measured(field, parse_duration)


def priority(draft: Draft, command: SubmitCommand) -> None:
    """Set the priority among the owner's jobs."""
    _measured("priority", parse_whole_number)(draft, command)


def _measured(field: str, measure: Callable[[object], object]) -> SubmitHandler:
    """Return a handler of an amount, which may be written as arithmetic; other expressions are refused."""
    cached = lru_cache(maxsize=_CACHED_AMOUNTS, typed=True)(measure)  # jobs of a file mostly have the same ones

    def put(draft: Draft, command: SubmitCommand) -> None:
        if fold(command.value) in ("", "undefined"):
            draft.attributes.setdefault(command.name, command.value)
            return
        amount = command.value if _AMOUNT.fullmatch(command.value) else _literal(command)
        if isinstance(amount, Expression):
            draft.keep(command.name, command.value)
            draft.computed[field] = lambda: put(draft, _computed(draft, command, amount))
            return
        draft.computed.pop(field, None)  # a custom attribute overrides a command, as in HTCondor
        if isinstance(amount, bool) or not isinstance(amount, int | float | str):
            raise command.fault(f"{command.value} is not a number")
        try:
            draft.put(**{field: cached(amount)})
        except InvalidRequirementsError as error:
            raise command.fault(error) from error

    return put


def _computed(draft: Draft, command: SubmitCommand, amount: Expression) -> SubmitCommand:
    """Return a command with the value of its expression, which may refer to the job's own attributes only.

    Another expression is refused, as its value may change; its command has no value then.
    """
    known = {fold(name) for name in draft.attributes}
    refers = references(amount.text)
    if not (refers.is_dynamic or refers.target or refers.in_my - known or set(calls(amount.text)) & _CHANGING):
        try:
            value = evaluate(compile_expression(amount.text), Ad(draft.attributes))
        except InvalidClassAdError as error:
            raise command.fault(error) from error
        if isinstance(value, int | float) and not isinstance(value, bool):
            return SubmitCommand(command.name, repr(value), command.line)
    draft.refuse(command.line, command.name, command.value, _NO_NUMBER)
    return SubmitCommand(command.name, "", command.line)


_CHANGING = frozenset({"time", "random", "currenttime", "abstime", "daytime", "formattime"})


def hold(draft: Draft, command: SubmitCommand) -> None:
    """Set whether the job is held at submission."""
    if truth_value(draft, command):
        draft.put(hold=True)


def custom_attribute(draft: Draft, command: SubmitCommand) -> None:
    """Keep a custom attribute (`+Name`): a literal or a list of literals. Any other value is refused."""
    value = _literal(command) if command.value else ""
    if all(
        isinstance(element, bool | int | float | str) for element in (value if isinstance(value, tuple) else (value,))
    ):
        draft.keep(command.name, as_attribute(value))
        return
    draft.keep(command.name, command.value)
    if fold(command.value) != "undefined":
        why = "it is an expression, and a job's attributes are plain values or lists of these"
        draft.refuse(command.line, command.name, command.value, why)
