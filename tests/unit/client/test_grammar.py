"""The grammar of the command lines: names, examples, errors, and what is loaded when."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pilotage.command_line.groups import examples_of
from pilotage_agents.main import program as agents
from pilotage_client.cli.grammar.commands import NAMES, TABLE
from pilotage_client.cli.grammar.names import Noun, command_of, verbs_of
from pilotage_client.cli.main import main as client
from pilotage_pilot.command_line import program as pilot
from pilotage_server.main import program as server
from support.commands import commands_below

PROGRAMS: dict[str, click.Group] = {str(program.name): program for program in (client, server, agents, pilot)}
COMMANDS = [(program, name, command) for program, group in PROGRAMS.items() for name, command in commands_below(group)]


def parse(program: click.Group, words: list[str]) -> click.Command:
    """Parse a command line without running it; returns its command."""
    context = program.make_context(program.name, words)
    while isinstance(context.command, click.Group):
        name, command, words = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, words, parent=context)
    return context.command


@pytest.mark.parametrize(
    ("program", "name", "command"), COMMANDS, ids=[f"{program} {name}" for program, name, _ in COMMANDS]
)
def test_examples_of_each_command_are_valid(program: str, name: str, command: click.Command) -> None:
    examples = examples_of(command)
    assert 1 <= len(examples) <= 3
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[0] == program
        assert parse(PROGRAMS[program], words[1:]) is command, f"{example} is no example of {name}"


def test_short_names_are_the_same_commands() -> None:
    context = click.Context(client)
    for _, verb in verbs_of(TABLE):
        for short in verb.short:
            assert client.get_command(context, short) is command_of(verb)
    for noun in TABLE.values():
        if isinstance(noun, Noun):
            assert all(NAMES[other] is noun for other in noun.also)


def parse_name(name: str) -> click.Command:
    return dict(commands_below(client))[name]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("pilots --ended", "pilot list"),
        ("shares --vo x", "share list"),
        ("token --owner a --role user --to t", "token create"),
        ("downtime S --from now --to +1h --reason r", "downtime plan"),
        ("race 12", "race list"),
        ("health", "health list"),
        ("routes explain 12", "route explain"),
        ("job list --all", "job status"),
    ],
)
def test_nouns_have_defaults_and_verbs_other_names(words: str, command: str) -> None:
    assert parse(client, words.split()) is parse_name(command)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["statsu"], "no such command: statsu; did you mean status"),
        (["site", "bann"], "no such command: bann; did you mean ban"),
        (["status", "--stat", "DONE"], "--state"),
    ],
)
def test_unknown_name_has_a_hint(words: list[str], hint: str) -> None:
    done = CliRunner().invoke(client, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert hint in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "where"),
    [
        (["status", "--stat", "--json"], "INVALID_USAGE", []),
        (["statsu", "--json"], "INVALID_USAGE", []),
        (["convert", "/nonexistent", "--json"], "INVALID_INPUT", ["/nonexistent"]),
        (["submit", "--server", "h", "--json", "--env", "NOWHERE_SET", "--", "a"], "INVALID_INPUT", ["--env"]),
    ],
)
def test_error_is_a_json_object_with_json(words: list[str], code: str, where: list[str]) -> None:
    done = CliRunner().invoke(client, words, env={"PILOTAGE_TOKEN": "t"})
    assert (done.exit_code, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == code
    assert error["message"]
    assert [each["where"] for each in error["violations"]] == where


def test_unreachable_server_is_a_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    done = CliRunner().invoke(client, ["status", "7", "--json"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert json.loads(done.stderr)["error"]["code"] == "UNREACHABLE"


def test_help_loads_no_command() -> None:
    program = (
        "import sys; from pilotage_client.cli.main import main; main.run(['-h']); main.run(['job', '-h']);"
        "print([name for name in sys.modules if name.startswith('pilotage_client.') or name == 'grpc'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "pilotage_client.cli.grammar.commands" in loaded
    assert not [name for name in ("'grpc'", "cli.options", "cli.status", "client.api") if name in loaded]
