"""The reference pages of the command line and the Python API are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage_client.api import Client
from pilotage_client.cli.main import SECTIONS
from pilotage_client.condor.arguments import OptionKind
from pilotage_client.condor.main import OPTIONS
from support.commands import KEYS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (REFERENCE / "command-line.md").read_text().splitlines()
    if line.startswith("|")
]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("command", KEYS)
def test_lists_json_keys_of_each_command(command: str) -> None:
    (listed,) = [quoted(row[2]) for row in ROWS if len(row) == 3 and command in quoted(row[0])]
    assert listed == list(KEYS[command])


@pytest.mark.parametrize("command", [name for names in SECTIONS.values() for name in names])
def test_describes_each_command(command: str) -> None:
    explained = [name for row in ROWS if len(row) == 2 for name in quoted(row[0])]
    assert any(re.match(rf"{command}( |$)", name) for name in explained)


def test_lists_each_method_of_the_client() -> None:
    listed = set(re.findall(r"`(\w+)[(`]", (REFERENCE / "python-api.md").read_text()))
    methods = {name for name in dir(Client) if not name.startswith("_")} - {"located", "close"}
    assert methods <= listed, methods - listed


@pytest.mark.parametrize("command", OPTIONS)
def test_lists_the_options_of_htcondors_commands(command: str) -> None:
    page = (REFERENCE.parent / "how-to" / "htcondor-commands.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|") and line.count("|") == 5]
    (listed,) = [[quoted(cell) for cell in row[1:]] for row in rows if command in quoted(row[0])]
    kinds = {OptionKind.DONE: 0, OptionKind.IGNORED: 1, OptionKind.SILENT: 1, OptionKind.REFUSED: 2}
    for option in OPTIONS[command]:
        assert f"-{option.name}" in listed[kinds[option.kind]]
