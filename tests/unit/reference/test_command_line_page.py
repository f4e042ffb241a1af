"""The reference pages of the command lines and the Python API are complete."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import pilotage_client
from pilotage.command_line.settings_options import SettingOption
from pilotage_agents.main import program as agents
from pilotage_client.api import Client
from pilotage_client.cli.main import main as client
from pilotage_client.condor.arguments import OptionKind
from pilotage_client.condor.main import OPTIONS
from pilotage_pilot.command_line import program as pilot
from pilotage_server.main import program as server
from support.commands import KEYS, commands_below

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
TEXT = (REFERENCE / "command-line.md").read_text()
COMMON_OPTIONS = {
    *("--server", "--context", "--token-file", "--ca-file", "--data", "--json", "--patience"),
    *("--columns", "--sort", "--color"),
}
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


def options_section(text: str, command: str) -> str:
    """Return the section of a command's options, "" if its line in the table has them all."""
    name = "job hold" if command in ("job release", "job remove", "job reschedule") else command
    return re.split(r"\n##+ ", text.partition(f"\n### `{name}`\n")[2])[0]


def options_of(command: click.Command) -> set[str]:
    """Return the long options of a command, except those of settings."""
    found = {word for each in command.params if not isinstance(each, SettingOption) for word in each.opts}
    return {each for each in found if each.startswith("--")}


COMMANDS = [
    *(("", name, options_of(command) - COMMON_OPTIONS) for name, command in commands_below(client)),
    *(
        (title, name, options_of(command))
        for title, program in (
            ("The server's own command", server),
            ("The agents' command", agents),
            ("The pilot's command", pilot),
        )
        for name, command in commands_below(program)
    ),
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
    text = " ".join([*explained, options_section(section(title) if title else TEXT, command)])
    if options >= FILTERS and "[filters](#jobs-by-what-they-have-in-common)" in text:
        text += section_of_filters()
    assert not [each for each in options if not re.search(rf"{each}(?![\w-])", text)]


def test_explains_common_options() -> None:
    assert not [each for each in COMMON_OPTIONS if each not in TEXT]


def test_lists_each_method_of_the_client() -> None:
    listed = set(re.findall(r"`(\w+)[(`]", (REFERENCE / "python-api.md").read_text()))
    methods = {name for name in dir(Client) if not name.startswith("_")} - {"located", "close"}
    assert methods <= listed, methods - listed


def test_examples_use_each_name_of_the_package() -> None:
    examples = "".join(re.findall(r"```python\n(.*?)```", (REFERENCE / "python-api.md").read_text(), re.DOTALL))
    assert not [name for name in pilotage_client.__all__ if not re.search(rf"\b{name}\b", examples)]


@pytest.mark.parametrize("command", OPTIONS)
def test_lists_the_options_of_htcondors_commands(command: str) -> None:
    page = (REFERENCE.parent / "how-to" / "htcondor-commands.md").read_text()
    (listed,) = [
        [quoted(cell) for cell in row[1:]] for row in rows(page) if len(row) == 4 and command in quoted(row[0])
    ]
    kinds = {OptionKind.DONE: 0, OptionKind.IGNORED: 1, OptionKind.SILENT: 1, OptionKind.REFUSED: 2}
    for option in OPTIONS[command]:
        assert f"-{option.name}" in listed[kinds[option.kind]]
