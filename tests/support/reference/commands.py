"""The page of commands: the help of each command of all programs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pilotage_agents.main import program as agents
from pilotage_client.cli.grammar.commands import NAMES
from pilotage_client.cli.grammar.names import Verb, command_of
from pilotage_client.cli.main import main as client
from pilotage_pilot.command_line import program as pilot
from pilotage_server.main import program as server
from support.commands import commands_below

_WIDTH = 100
_HEAD = """# Commands

On this page you find the help of each command, as `-h` shows it. `make reference` writes it from the
programs. The [command line](command-line.md) explains what is common: ids, exit codes, server and token, JSON.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for program in (client, server, agents, pilot):
        lines += [f"## {program.name}", ""]
        for name, command in commands_below(program):
            lines += _section(program, name, command)
    return "\n".join(lines)


def _section(program: click.Group, name: str, command: click.Command) -> Iterator[str]:
    yield f"### {program.name} {name}"
    yield ""
    verbs = {short: each for short, each in NAMES.items() if short != name and isinstance(each, Verb)}
    others = [short for short, verb in verbs.items() if command_of(verb) is command]
    if others:
        yield f"Also {', '.join(f'`{program.name} {short}`' for short in others)}."
        yield ""
    context = click.Context(
        command, info_name=f"{program.name} {name}", terminal_width=_WIDTH, help_option_names=["-h", "--help"]
    )
    yield "```text"
    yield from (line.rstrip() for line in command.get_help(context).splitlines())
    yield "```"
    yield ""
