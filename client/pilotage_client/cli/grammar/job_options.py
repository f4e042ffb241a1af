"""Options of `submit` that describe jobs: a command on the command line, and changes of the jobs of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.job_description import JobDescription
from pilotage_client.readers.values import job
from pilotage_client.templates import with_change

Returned = TypeVar("Returned")

STANDARD_INPUT = "-"

COMMAND = Path("command")
"""What messages call the command on the command line, where others name a file."""

_FIELDS: Mapping[str, str] = {
    "name": "--name",
    "request_cpus": "--cpus",
    "request_memory": "--memory",
    "request_disk": "--disk",
    "request_gpus": "--gpus",
    "wall_time": "--wall-time",
    "priority": "--priority",
    "retries": "--retries",
}
"""Options that set a field of a job, also of the jobs of a file."""

_OF_COMMANDS: Mapping[str, str] = {
    "count": "--array",
    "image": "--image",
    "input_files": "--input",
    "output_files": "--output",
}
"""Options that belong to a command: in a file they would change which local files are sent, or which jobs there are."""

_OPTIONS = (
    click.option("--name", metavar="NAME", help="The name of the job (default: that of the command)."),
    click.option("--cpus", "request_cpus", metavar="N", help="The number of cores."),
    click.option("--memory", "request_memory", metavar="SIZE", help="The memory, such as 4GB; without a unit in MB."),
    click.option("--disk", "request_disk", metavar="SIZE", help="The disk space, such as 20GB."),
    click.option("--gpus", "request_gpus", metavar="N", help="The number of GPUs."),
    click.option("--wall-time", "--time", "wall_time", metavar="TIME", help="The longest run time, such as 90min."),
    click.option("--priority", metavar="N", help="The priority among your own jobs; the higher, the earlier."),
    click.option("--retries", metavar="N", help="Run a failed job again up to N times."),
    click.option("--require", multiple=True, metavar="NAME=VALUE", help="A requirement, such as OS=el9; repeatable."),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable, or pass on that of your shell; repeatable.",
    ),
    click.option("--site", "sites", multiple=True, metavar="SITE", help="Run there; repeatable."),
    click.option(
        "--array",
        "count",
        type=click.IntRange(min=1),
        metavar="N",
        help="Run the command N times; '$(Process)' in it is the number, from 0.",
    ),
    click.option("--image", metavar="IMAGE", help="Run the command in this container image."),
    click.option("--input", "input_files", multiple=True, metavar="PATH", help="Send this file; repeatable."),
    click.option("--output", "output_files", multiple=True, metavar="NAME", help="Fetch this file; repeatable."),
)


class CommandAfterDashes(click.Command):
    """A command of which the words after `--` are the command of a job, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["command"] = tuple(args[at + 1 :])
        return rest


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options: changes as `edit` takes them, and keys of a job that only a command has."""

    changes: tuple[str, ...]
    keys: Mapping[str, Any]

    def job_of(self, command: Sequence[str]) -> JobDescription:
        """Return the job that runs a command; raises InvalidInputError with all faults, which name options."""
        with _named_options():
            described = job(*command, name=Path(command[0]).name, **self.keys)
        return self.changed(described)

    def changed(self, description: JobDescription) -> JobDescription:
        """Return the description with the changes; raises InvalidInputError with all faults, which name options."""
        faults = Faults()
        for change in self.changes:
            with faults.within(""), _named_options():
                description = with_change(description, change)
        faults.raise_any()
        return description

    def refuse_for(self, jobs: Sequence[JobDescription]) -> None:
        """Raise UsageError for options that cannot change the jobs of files."""
        if self.keys:
            options = ", ".join(_OF_COMMANDS[key] for key in self.keys)
            raise click.UsageError(f"{options}: goes with -- COMMAND only; a job file says it itself")
        if len(jobs) > 1 and any(change.startswith("name=") for change in self.changes):
            raise click.UsageError("--name: there are several jobs, which may depend on each other by name")


def with_job_options(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Add the options to a command, which gets them as `options`."""

    @wraps(command)
    def described(*args: Any, **given: Any) -> Returned:
        names = (*_FIELDS, *_OF_COMMANDS, "require", "env", "sites")
        values = {name: given.pop(name) for name in names}
        keys = {key: values[key] for key in _OF_COMMANDS if values[key]}
        return command(*args, options=JobOptions(tuple(_changes(values)), keys), **given)

    decorated: Callable[..., Returned] = described
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _changes(values: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{field}={values[field]}" for field in _FIELDS if values[field] is not None)
    for requirement in values["require"]:
        if "=" not in requirement:
            raise InvalidInputError(Violation("--require", f"{requirement} is not NAME=VALUE, such as OS=el9"))
        yield f"requirements.{requirement}"
    for variable in values["env"]:
        name, equals, _ = variable.partition("=")
        if not equals and name not in os.environ:
            raise InvalidInputError(Violation("--env", f"{name} is not set here; write {name}=VALUE"))
        yield f"environment.{variable}" if equals else f"environment.{name}={os.environ[name]}"
    if values["sites"]:
        yield f"sites={','.join(values['sites'])}"


@contextmanager
def _named_options() -> Iterator[None]:
    """Name the options in the faults of fields that leave the block."""
    try:
        yield
    except InvalidInputError as error:
        options = {**_FIELDS, **_OF_COMMANDS}
        named = (replace(each, where=options.get(each.where, each.where)) for each in error.violations)
        raise type(error)(*named) from error
