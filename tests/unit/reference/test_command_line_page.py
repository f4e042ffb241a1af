"""The reference pages of the command lines and the Python API are complete."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pilotage_agents.main import _parser as agents_parser
from pilotage_client.api import Client
from pilotage_client.cli.main import SECTIONS, main
from pilotage_client.condor.arguments import OptionKind
from pilotage_client.condor.main import OPTIONS
from pilotage_pilot.command_line import _parser as pilot_parser
from pilotage_server.main import _parser as server_parser
from support.commands import KEYS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
TEXT = (REFERENCE / "command-line.md").read_text()
COMMON_OPTIONS = {"--server", "--context", "--token-file", "--ca-file", "--data", "--json", "--patience"}
"""Options that are explained once for all commands of `pilotage`."""


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def section(title: str) -> str:
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    assert rest, f"there is no section {title}"
    return rest.partition("\n## ")[0]


FILTERS = {"--state", "--name", "--owner", "--where"}
"""Some of the options that select jobs, which are explained once for all commands that have them."""


def section_of_filters() -> str:
    return TEXT.partition("\n### Jobs by what they have in common\n")[2].partition("\n| command | does |")[0]


def commands_of_client(group: click.Group, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield the commands of `pilotage` with their long options."""
    for name, command in group.commands.items():
        options = {word for each in command.params if isinstance(each, click.Option) for word in each.opts}
        if isinstance(command, click.Group):
            yield from commands_of_client(command, f"{above}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{above}{name}", {each for each in options if each.startswith("--")} - COMMON_OPTIONS


def commands_of(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield the commands of another program with their long options, except those of settings."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for group in groups:
        for name, command in group.choices.items():
            yield from commands_of(command, f"{above}{name} ")
    if not groups:
        of_settings = {
            each for group in parser._action_groups if group.title == "settings" for each in group._group_actions
        }
        actions = [each for each in parser._actions if each not in of_settings]
        options = {word for each in actions for word in each.option_strings if word.startswith("--")}
        yield above.strip(), options - {"--help"}


COMMANDS = [
    *(("", name, options) for name, options in commands_of_client(main)),
    *(("The server's own command", name, options) for name, options in commands_of(server_parser())),
    *(("The agents' command", name, options) for name, options in commands_of(agents_parser())),
    *(("The pilot's command", name, options) for name, options in commands_of(pilot_parser())),
]


@pytest.mark.parametrize("command", KEYS)
def test_lists_json_keys_of_each_command(command: str) -> None:
    (listed,) = [quoted(row[2]) for row in rows(TEXT) if len(row) == 3 and command in quoted(row[0])]
    assert listed == list(KEYS[command])


@pytest.mark.parametrize(
    ("title", "command", "options"), COMMANDS, ids=[f"{title} {command}".strip() for title, command, _ in COMMANDS]
)
def test_describes_each_command_and_its_options(title: str, command: str, options: set[str]) -> None:
    explained = [
        " ".join(row)
        for row in rows(section(title) if title else TEXT)
        if len(row) == 2 and any(re.match(rf"{command}( |$)", name) for name in quoted(row[0]))
    ]
    assert explained
    text = " ".join(explained)
    if options >= FILTERS and "[filters](#jobs-by-what-they-have-in-common)" in text:
        text += section_of_filters()
    assert not [each for each in options if not re.search(rf"{each}(?![\w-])", text)]


def test_explains_common_options() -> None:
    assert not [each for each in COMMON_OPTIONS if each not in TEXT]


def test_help_shows_each_command_of_the_client() -> None:
    shown = {name for names in SECTIONS.values() for name in names}
    assert {name for title, name, _ in COMMANDS if not title} == shown


def test_lists_each_method_of_the_client() -> None:
    listed = set(re.findall(r"`(\w+)[(`]", (REFERENCE / "python-api.md").read_text()))
    methods = {name for name in dir(Client) if not name.startswith("_")} - {"located", "close"}
    assert methods <= listed, methods - listed


@pytest.mark.parametrize("command", OPTIONS)
def test_lists_the_options_of_htcondors_commands(command: str) -> None:
    page = (REFERENCE.parent / "how-to" / "htcondor-commands.md").read_text()
    (listed,) = [
        [quoted(cell) for cell in row[1:]] for row in rows(page) if len(row) == 4 and command in quoted(row[0])
    ]
    kinds = {OptionKind.DONE: 0, OptionKind.IGNORED: 1, OptionKind.SILENT: 1, OptionKind.REFUSED: 2}
    for option in OPTIONS[command]:
        assert f"-{option.name}" in listed[kinds[option.kind]]
