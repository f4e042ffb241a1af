"""Groups of commands: how a program ends, what it says about errors, and the examples in its help.

A command returns its exit code, or None for 0. Errors become a message on the standard error; with `--json` that is
one JSON object, `{"error": {"code", "message", "violations"}}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import click

from pilotage.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    UnauthenticatedError,
)
from pilotage.programs import ProgramExit
from pilotage.text import did_you_mean

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""Settings of click for all programs: `-h` on each command, and help as wide as a reader's eye."""

_EXAMPLES = "Examples:"


def examples(*lines: str) -> str:
    """Return the epilog of a command with these examples, each one a line as a user types it."""
    return "\n".join(["\b", _EXAMPLES, *(f"  {line}" for line in lines)])


def examples_of(command: click.Command) -> list[str]:
    """Return the examples in the help of a command."""
    _, _, shown = (command.epilog or "").partition(f"{_EXAMPLES}\n")
    return [line.strip() for line in shown.splitlines() if line.startswith("  ")]


def exit_code(error: PilotageError) -> int:
    """Return the exit code of `pilotage` for an error."""
    match error:
        case ServerUnreachableError():
            return ProgramExit.UNREACHABLE
        case InvalidInputError() | NotFoundError() | PermissionDeniedError() | UnauthenticatedError():
            return ProgramExit.INVALID_REQUEST
        case _:
            return ProgramExit.FAILED


def error_json(error: PilotageError) -> str:
    """Return an error as a JSON object on one line; its code is the reason that the server's answers have too."""
    from pilotage.rpc.status import reason_of  # gRPC takes a while to load, and most commands have no error

    return _object(
        reason_of(error),
        str(error),
        [(each.where, each.why) for each in error.violations] if isinstance(error, InvalidInputError) else (),
    )


def report(error: PilotageError, text: str, *, as_json: bool) -> None:
    """Write an error to the standard error: as JSON, or else `text`."""
    click.echo(error_json(error) if as_json else text, err=True)


class CommandGroup(click.Group):
    """A group that names the nearest command if there is no such command."""

    def list_names(self, ctx: click.Context) -> list[str]:
        """Return all names of commands; help may show fewer."""
        return self.list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with its whole first sentence."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=1000)) for name, each in found if each])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument, and its arguments."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(f"no such command: {name}{did_you_mean(name, self.list_names(ctx))}", ctx)
        return super().resolve_command(ctx, args)


class ProgramGroup(CommandGroup):
    """The commands of a program: errors, Ctrl-C and a closed pipe become a message and an exit code."""

    def exit_code_of(self, error: PilotageError) -> int:
        """Return the exit code for an error."""
        return exit_code(error)

    def text_of(self, error: PilotageError) -> str:
        """Return the message for an error, a line for each fault."""
        name = self.name or "pilotage"
        if isinstance(error, InvalidInputError):
            return "\n".join(f"{name}: {' '.join(str(fault).splitlines())}" for fault in error.violations)
        return f"{name}: {' '.join(str(error).split())}"

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; it is done when the reader of its output has ended (| head)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            return ProgramExit.DONE

    def main(self, args: Sequence[str] | None = None, *_args: Any, **options: Any) -> NoReturn:
        """Run the command line, and exit."""
        sys.exit(self.run(sys.argv[1:] if args is None else args, **options))

    def run(self, arguments: Sequence[str], prog_name: str | None = None, **options: Any) -> int:
        """Run the command in `arguments`; returns its exit code."""
        given = list(arguments)
        as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
        options["standalone_mode"] = False
        try:
            code = super().main(given, prog_name or self.name, **options)
        except click.ClickException as error:
            _report_usage(error, as_json=as_json)
            return error.exit_code
        except click.Abort as stop:
            if isinstance(stop.__cause__ or stop.__context__, KeyboardInterrupt):
                return ProgramExit.INTERRUPTED
            click.echo("Aborted!", err=True)
            return ProgramExit.FAILED
        except PilotageError as error:
            report(error, self.text_of(error), as_json=as_json)
            return self.exit_code_of(error)
        except OSError as error:
            _discard_output()
            text = (error.strerror or str(error)).lower()
            click.echo(_object("OS_ERROR", text) if as_json else f"{self.name or 'pilotage'}: {text}", err=True)
            return ProgramExit.FAILED
        return code if isinstance(code, int) else ProgramExit.DONE


def _report_usage(error: click.ClickException, *, as_json: bool) -> None:
    """Report a faulty use of the command line; a program without arguments shows its help."""
    if as_json and not isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(_object("INVALID_USAGE", error.format_message()), err=True)
    else:
        error.show()


def _object(code: str, message: str, violations: Collection[tuple[str, str]] = ()) -> str:
    faults = [{"where": where, "why": why} for where, why in violations]
    return json.dumps({"error": {"code": code, "message": message, "violations": faults}})


def _discard_output() -> None:
    """Redirect the standard output to /dev/null: a flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
