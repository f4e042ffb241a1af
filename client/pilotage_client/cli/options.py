"""Parts that commands share: server options, exit codes, error messages, job ids, tables, ClassAds."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from pilotage import clock
from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import name_text, value_text
from pilotage.errors import (
    InvalidInputError,
    InvalidRequirementsError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    StateConflictError,
    UnauthenticatedError,
    Violation,
)
from pilotage.programs import ProgramExit
from pilotage.units import parse_duration
from pilotage.v1 import values_pb2
from pilotage_client.api import Client
from pilotage_client.connection import ServerOptions
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget

DONE, FAILED, INVALID_REQUEST, UNREACHABLE = ProgramExit
"""The documented exit codes."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
ONE_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...")
SOME_IDS = click.argument("ids", nargs=-1, metavar="[ID...]")

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def exit_code(error: PilotageError) -> int:
    """Return the exit code for an error."""
    match error:
        case ServerUnreachableError():
            return UNREACHABLE
        case InvalidInputError() | NotFoundError() | PermissionDeniedError() | UnauthenticatedError():
            return INVALID_REQUEST
        case _:
            return FAILED


def error_text(error: PilotageError) -> str:
    """Return the message for an error: for invalid input one line for each fault, with its place first."""
    if isinstance(error, InvalidInputError):
        return "\n".join(str(violation) for violation in error.violations)
    return f"pilotage: {error}"


class CommandGroup(click.Group):
    """A group whose commands turn errors into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors become exit codes."""
        try:
            return super().invoke(ctx)
        except PilotageError as error:
            click.echo(error_text(error), err=True)
            ctx.exit(exit_code(error))
        except BrokenPipeError:  # the reader of the pipe has ended (| head)
            _discard_output()
            ctx.exit(DONE)
        except OSError as error:
            _discard_output()
            click.echo(f"pilotage: {(error.strerror or str(error)).lower()}", err=True)
            ctx.exit(FAILED)


class SectionedGroup(CommandGroup):
    """A group whose help shows its commands in sections, each with its whole first sentence.

    `sections` maps a heading to names of commands; those of a subgroup look like "tree show".
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.find(name).get_short_help_str(limit=1000)) for name in names])

    def find(self, name: str) -> click.Command:
        """Return the command of a name such as "tree show"."""
        command: click.Command = self
        for word in name.split():
            assert isinstance(command, click.Group), f"{name} is the name of a command"
            command = command.commands[word]
        return command


def _discard_output() -> None:
    """Redirect the standard output to /dev/null: a flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for server, token, authority and context to a command."""
    for option in (
        click.option("--server", metavar="HOST:PORT", help="The server; several addresses with commas."),
        click.option("--token-file", type=click.Path(path_type=Path), help="A file with your token."),
        click.option("--ca-file", type=click.Path(path_type=Path), help="The authority of the server's certificate."),
        click.option("--data", type=click.Path(path_type=Path), help="The data folder of `pilotage up`."),
        click.option("--context", metavar="NAME", help="A server that `pilotage join` has joined."),
    ):
        command = option(command)
    return command


def with_client(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Pass a connected `Client` to a command as its first argument."""
    return _connected(command, "user")


def with_operator_client(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Pass a `Client` with the operator's token of `pilotage up`, if there is one."""
    return _connected(command, "operator")


def with_admin_client(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Pass a `Client` with the administrator's token of `pilotage up`, if there is one."""
    return _connected(command, "admin")


def _connected(command: Callable[..., Returned], role: str) -> Callable[..., Returned]:
    @server_options
    @wraps(command)
    def connected(
        *args: Any,
        server: str | None,
        token_file: Path | None,
        ca_file: Path | None,
        data: Path | None,
        context: str | None,
        **kwargs: Any,
    ) -> Returned:
        with Client.located(ServerOptions(server, token_file, data, role, ca_file, context)) as client:
            return command(client, *args, **kwargs)

    return connected


def echo_job_heading(job_id: int, *, is_first: bool) -> None:
    """Print a line above the output of one of several jobs, as `tail` does for files."""
    click.echo(f"{'' if is_first else chr(10)}==> job {job_id} <==")


def for_each_job(ctx: click.Context, job_ids: Sequence[int], act: Callable[[int], object]) -> None:
    """Call `act` for each job. A failure of one of several jobs is reported, and the others follow."""
    if len(job_ids) == 1:
        act(job_ids[0])
        return
    failed = False
    for job_id in job_ids:
        try:
            act(job_id)
        except (StateConflictError, InvalidInputError, NotFoundError) as error:
            click.echo(error_text(error), err=True)
            failed = True
    if failed:
        ctx.exit(FAILED)


def node_names(text: str) -> list[str]:
    """Return the one to three names of "site/ce/queue"; a queue's name may contain a slash."""
    names = text.split("/", 2)
    if not all(names):
        raise InvalidInputError(Violation(text, "is not a site, CE or queue; write SITE, SITE/CE or SITE/CE/QUEUE"))
    return names


def refuse_options_of_group(context: click.Context, given: Iterable[object]) -> None:
    """Raise UsageError if options stand before the subcommand: it would use another server than the given one."""
    if any(given):
        path = f"{context.command_path} {context.invoked_subcommand}"
        raise click.UsageError(f"give the options of {context.invoked_subcommand} after it: {path} --help")


def echo_json(value: Any) -> None:
    """Print one JSON object on one line, in ASCII, which any terminal encoding shows."""
    click.echo(json.dumps(value))


def echo_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows in aligned columns below their headings, or `empty` if there are none."""
    texts = [tuple("" if cell is None else printable(str(cell)) for cell in row) for row in rows]
    if not texts:
        click.echo(empty)
        return
    widths = [max(len(row[column]) for row in (tuple(headings), *texts)) for column in range(len(headings))]
    for row in (tuple(headings), *texts):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Return a text without line breaks and control characters, as users choose it."""
    shown = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return text if text.isprintable() else "".join(shown)


def time_text(time: datetime | None) -> str:
    """Return a local time, to the second, in another year than the present one to the minute; empty for None."""
    if time is None:
        return ""
    here = time.astimezone()
    return here.strftime("%m-%d %H:%M:%S" if here.year == clock.now().astimezone().year else "%Y-%m-%d %H:%M")


_CLOCK_TIME = re.compile(r"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)", re.ASCII)


def past_time(text: str | None, option: str) -> datetime | None:
    """Return a past time: "2 h" = two hours ago, "02:00" = the last time that it was two here, or ISO 8601 with a zone.

    None = the option is not given.
    """
    now = clock.now()
    if text is None:
        return None
    if match := _CLOCK_TIME.fullmatch(text):
        here = now.astimezone()
        at = here.replace(hour=int(match["hour"]), minute=int(match["minute"]), second=0, microsecond=0)
        return (at if at <= here else at - timedelta(days=1)).astimezone(UTC)
    try:
        return _iso_time(text, option) or now - parse_duration(text, option)
    except InvalidRequirementsError:
        raise _no_time(text, option, "2 h (ago), 02:00 (the last one here)") from None


def coming_time(text: str, option: str) -> datetime:
    """Return a time to come: "+2h" = in two hours, "now", or ISO 8601 with a zone."""
    now = clock.now().replace(microsecond=0)
    if text == "now":
        return now
    try:
        if text.startswith("+"):
            return now + parse_duration(text[1:], option)
    except InvalidRequirementsError:
        raise _no_time(text, option, "+2h (from now), now") from None
    if (found := _iso_time(text, option)) is not None:
        return found
    raise _no_time(text, option, "+2h (from now), now")


def _iso_time(text: str, option: str) -> datetime | None:
    """Return the time in ISO 8601, None = it is none; raises InvalidInputError if it has no zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        here = time.astimezone().isoformat(timespec="minutes")
        raise InvalidInputError(Violation(option, f"{text} has no zone; write {here}, or with Z for UTC"))
    return time.astimezone(UTC)


def _no_time(text: str, option: str, examples: str) -> InvalidInputError:
    return InvalidInputError(Violation(option, f"{text!r} is not a time; write {examples} or 2026-11-27T02:00+01:00"))


def queue_text(queue: values_pb2.QueueId) -> str:
    """Return a queue as SITE/CE/QUEUE."""
    return f"{queue.site}/{queue.ce}/{queue.queue}"


def section_text(section: Mapping[str, Any]) -> str:
    """Return requirements as one line, such as `Memory=4000 Tags=a,b`."""
    items = {name: value if isinstance(value, tuple | list) else (value,) for name, value in section.items()}
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in items.items())


def long_form(ad: str) -> str:
    """Return an ad as `condor_q -long` prints it: one attribute a line, by name."""
    return "\n".join(f"{name_text(name)} = {value_text(value)}" for name, value in _sorted(ad))


def ad_as_json(ad: str) -> dict[str, Any]:
    """Return an ad's attributes by name; expressions as text."""
    return {name: _plain(value) for name, value in _sorted(ad)}


def _sorted(ad: str) -> list[tuple[str, AdValue]]:
    return sorted(Ad.read(ad).plain().items(), key=lambda pair: pair[0].lower())


def _plain(value: AdValue) -> Any:
    match value:
        case Expression(text):
            return text
        case tuple():
            return [_plain(element) for element in value]
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case _:
            return value


PATIENCE = click.option(
    "--patience",
    default=f"{DEFAULT_RETRY_S / 60:.0f} min",
    show_default=True,
    metavar="TIME",
    help="How long to retry while the server cannot be reached.",
)


def retry_option(text: str) -> RetryBudget:
    """Return the retries of the option --patience; they are reported on the standard error."""
    seconds = parse_duration(text, "--patience").total_seconds()
    return RetryBudget(seconds, lambda line: click.echo(f"pilotage: {line}", err=True))
