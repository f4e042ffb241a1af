"""Parts that commands share: server options, exit codes, error messages, job ids, tables, ClassAds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import click

from pilotage import clock
from pilotage.command_line.groups import report
from pilotage.errors import (
    InvalidInputError,
    InvalidRequirementsError,
    NotFoundError,
    StateConflictError,
    Violation,
)
from pilotage.programs import ProgramExit
from pilotage.units import parse_duration
from pilotage_client.api import Client
from pilotage_client.cli.grammar.names import error_text
from pilotage_client.connection import ServerOptions
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget

if TYPE_CHECKING:
    from pilotage.classads.library import AdValue

DONE, FAILED = ProgramExit.DONE, ProgramExit.FAILED
"""The documented exit codes."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
ONE_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...")
SOME_IDS = click.argument("ids", nargs=-1, metavar="[ID...]")

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for server, token, authority and context to a command."""
    options = (
        click.option("--server", metavar="HOST:PORT", help="The server; several addresses with commas."),
        click.option("--token-file", type=click.Path(path_type=Path), help="A file with your token."),
        click.option("--ca-file", type=click.Path(path_type=Path), help="The authority of the server's certificate."),
        click.option("--data", type=click.Path(path_type=Path), help="The data folder of `pilotage up`."),
        click.option("--context", metavar="NAME", help="A server that `pilotage join` has joined."),
    )
    for option in reversed(options):
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
            report(error, error_text(error), as_json=bool(ctx.params.get("as_json")))
            failed = True
    if failed:
        ctx.exit(FAILED)


def node_names(text: str) -> list[str]:
    """Return the one to three names of "site/ce/queue"; a queue's name may contain a slash."""
    names = text.split("/", 2)
    if not all(names):
        raise InvalidInputError(Violation(text, "is not a site, CE or queue; write SITE, SITE/CE or SITE/CE/QUEUE"))
    return names


def echo_json(value: Any) -> None:
    """Print one JSON object on one line, in ASCII, which any terminal encoding shows."""
    click.echo(json.dumps(value))


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


class InQueue(Protocol):
    """Anything that names a queue: its id, a job, a pilot, a slot."""

    @property
    def site(self) -> str:
        """The site."""

    @property
    def ce(self) -> str:
        """The computing element."""

    @property
    def queue(self) -> str:
        """The name in the batch system."""


def queue_text(queue: InQueue) -> str:
    """Return a queue as SITE/CE/QUEUE."""
    return f"{queue.site}/{queue.ce}/{queue.queue}"


def section_text(section: Mapping[str, Any]) -> str:
    """Return requirements as one line, such as `Memory=4000 Tags=a,b`."""
    items = {name: value if isinstance(value, tuple | list) else (value,) for name, value in section.items()}
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in items.items())


def long_form(ad: str) -> str:
    """Return an ad as `condor_q -long` prints it: one attribute a line, by name."""
    from pilotage.classads.text import name_text, value_text  # HTCondor's library, which few commands need

    return "\n".join(f"{name_text(name)} = {value_text(value)}" for name, value in _sorted(ad))


def ad_as_json(ad: str) -> dict[str, Any]:
    """Return an ad's attributes by name; expressions as text."""
    return {name: _plain(value) for name, value in _sorted(ad)}


def _sorted(ad: str) -> list[tuple[str, AdValue]]:
    from pilotage.classads.evaluation import Ad

    return sorted(Ad.read(ad).plain().items(), key=lambda pair: pair[0].lower())


def _plain(value: AdValue) -> Any:
    from pilotage.classads.library import Expression

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


def _echo_outage(line: str) -> None:
    click.echo(f"pilotage: {line}", err=True)


def retry_option(text: str, notify: Callable[[str], None] = _echo_outage) -> RetryBudget:
    """Return the retries of the option --patience; `notify` gets a line for each outage."""
    return RetryBudget(parse_duration(text, "--patience").total_seconds(), notify)
