"""Each command of the programs that a page names exists, with the options that it has there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pilotage_agents.main import program as agents
from pilotage_client.cli.grammar.names import NounGroup
from pilotage_client.cli.main import main
from pilotage_pilot.command_line import program as pilot
from pilotage_server.main import program as server

ROOT = Path(__file__).parents[3]
COMMAND = r"pilotage(?:-\w+)? .*"
PROGRAMS: dict[str, click.Group] = {
    "pilotage": main,
    "pilotage-agents": agents,
    "pilotage-pilot": pilot,
    "pilotage-server": server,
}
PAGES = {
    path.relative_to(ROOT): path.read_text()
    for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md")
    if path.parent.name != "decisions"  # they keep commands of their time
}


def commands_in(text: str) -> list[str]:
    """Return the commands in inline code, those after a prompt, and those that begin a line of a code block."""
    text = re.sub(r"\\\n *", "", text)
    prompted = re.findall(rf"^ *\$ (?:\S*/)?({COMMAND})$", text, re.MULTILINE)
    blocks = "".join(re.findall(r"^```\S*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    plain = re.findall(rf"^({COMMAND})$", blocks, re.MULTILINE)
    return [*re.findall(r"`(pilotage(?:-\w+)? (?!…)[^`]+)`", text), *prompted, *plain]


def faults_of(line: str) -> list[str]:
    """Return the words of a command line that are no command or no option there."""
    line = re.split(r"\s#\s|\s[|;&]|\sN\b", line.replace("…", "X").replace("'", '"'))[0]
    program, *words = shlex.split(line, posix=True)
    if program not in PROGRAMS:
        return [program]
    command: click.Command = PROGRAMS[program]
    context = click.Context(
        command, help_option_names=["-h", "--help"]
    )  # click keeps the help option of the first context
    while isinstance(command, click.Group):
        if isinstance(command, NounGroup) and (verb := command.meant(words, context)):
            words = [verb, *words]
        if not words or words[0].startswith("-"):
            break
        try:
            _, found, rest = command.resolve_command(context, words)
        except click.UsageError:
            return [words[0]]
        assert found is not None
        command, words = found, rest
    options = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
    named = [word.partition("=")[0].rstrip(",") for word in words if re.match(r"--?[a-z]", word)]
    return [each for each in named if each.startswith("--") and each not in options]


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_page_names_commands_that_exist(path: Path) -> None:
    assert not {line: faults for line in commands_in(PAGES[path]) if (faults := faults_of(line))}


def test_commands_are_found_in_code_and_after_prompts() -> None:
    text = "Run `pilotage why 7`.\n\n    $ pilotage submit \\\n        a.toml --follow\n```\npilotage-server run\n```\n"
    assert commands_in(text) == ["pilotage why 7", "pilotage submit a.toml --follow", "pilotage-server run"]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("pilotage submit FILE --after-ok 12", []),
        ("pilotage submit --afterok 12", ["--afterok"]),
        ("pilotage sumbit FILE", ["sumbit"]),
        ("pilotage tree resolve TREE --vo=cms", []),
        ("pilotage tree resovle TREE", ["resovle"]),
        ("pilotage token --owner O --to FILE", []),
        ("pilotage-server run --http-listen 127.0.0.1:8080", []),
        ("pilotage-server run --htp-listen 127.0.0.1:8080", ["--htp-listen"]),
        ("pilotage-sever run", ["pilotage-sever"]),
    ],
)
def test_unknown_commands_and_options_are_faults(line: str, faults: list[str]) -> None:
    assert faults_of(line) == faults
