"""The command line as a shell and a user meet it: start, completion, Ctrl-C, and jobs without a file."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.cli.grammar.completion import SHELLS
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.debian import find_or_install
from support.server import RunningServer

HEAVY = (
    "pydantic",
    "htcondor2",
    "classad2",
    "rich",
    "yaml",
    "cloudpickle",
    "structlog",
    "importlib.metadata",
    "pilotage.classads.library",
    "pilotage.resources.tree",
    "pilotage_client.condor.formats",
)
NOUNS = ("accounts", "explanations", "grid", "jobs", "operations", "routes")


@pytest.fixture
def command(shared_server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest) -> Command:
    """Return `pilotage` as a user runs it, with a token of an owner without jobs."""
    token = shared_server.token(Role.USER, owner=request.node.name)
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=shared_server.address, PILOTAGE_TOKEN=token))


@pytest.mark.parametrize(
    ("word", "models"),
    [("--help", []), ("status", ["jobs"]), ("sites", ["grid", "jobs"])],
    ids=["help", "status", "sites"],
)
def test_commands_load_what_they_need(command: Command, word: str, models: list[str]) -> None:
    """The rule of decision 0071: no heavy module, and of the values only those that the command shows."""
    program = (
        "import sys; from pilotage_client.cli.main import main; code = main.run(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, word], env=command.environment, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert not loaded.intersection(HEAVY)
    assert sorted(name for name in NOUNS if f"pilotage_client.models.{name}" in loaded) == models


def test_submits_a_command_with_options(command: Command, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("x")
    given = ["--cpus", "2", "--memory", "4GB", "--wall-time", "90min", "--array", "3", "--require", "Tags=a,b"]
    more = ["--env", "MODE=fast", "--env", "HOME", "--input", tmp_path / "data.txt", "--site", "A", "--site", "B"]
    submitted = json.loads(command("job", "submit", *given, *more, "--json", "--", "/bin/echo", "--cpus", "{x}"))
    assert len(submitted["jobs"]) == 3
    with Client(command.environment["PILOTAGE_SERVER"], command.environment["PILOTAGE_TOKEN"]) as client:
        job = client.description(submitted["jobs"][0])
    assert (job.executable, job.arguments, job.name) == ("/bin/echo", "--cpus {x}", "echo")
    assert (job.request_cpus, job.request_memory_mib, job.sites) == (2, 4096, ("A", "B"))
    assert job.requirements == {"Tags": ("a", "b")}
    assert job.environment == {"MODE": "fast", "HOME": str(tmp_path)}
    assert [each.name for each in job.input_files] == ["data.txt"]


def test_submits_the_standard_input_with_changes(command: Command) -> None:
    arguments = ["pilotage", "submit", "--memory", "3GB", "--json", "-"]
    text = 'executable = "/bin/true"\nrequest_cpus = 4\n'
    done = subprocess.run(arguments, input=text, env=command.environment, capture_output=True, text=True, check=True)
    (job_id,) = json.loads(done.stdout)["jobs"]
    with Client(command.environment["PILOTAGE_SERVER"], command.environment["PILOTAGE_TOKEN"]) as client:
        job = client.description(job_id)
    assert (job.request_cpus, job.request_memory_mib) == (4, 3072)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["submit"], "give job files"),
        (["submit", "a.toml", "--", "b"], "either job files or -- COMMAND"),
        (["submit", "--language", "jdl", "--", "b"], "--language: belongs to files"),
        (["submit", "--memory", "much", "--cpus", "-1", "--", "/bin/true"], "--memory: "),
        (["submit", "--array", "3", "{file}"], "--array: goes with -- COMMAND"),
        (["submit", "--name", "x", "{file}", "{file2}"], "--name: there are several jobs"),
    ],
)
def test_refuses_options_that_do_not_go_together(
    command: Command, arguments: list[str], why: str, tmp_path: Path
) -> None:
    files = {"file": tmp_path / "one.toml", "file2": tmp_path / "two.toml"}
    for file in files.values():
        file.write_text('executable = "/bin/true"\n')
    done = command.run(*(each.format(**files) for each in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_interrupt_ends_with_130_and_no_traceback(command: Command) -> None:
    submitted = json.loads(command("submit", "--json", "--", "/bin/true"))
    waiting = command.start("events", "--follow", submitted["jobs"][0])
    assert waiting.stdout is not None
    assert waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, errors.strip()) == (130, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_commands_and_jobs(shell: str, command: Command, tmp_path: Path) -> None:
    program = find_or_install(lambda: shutil.which(shell), shell)
    with Client(command.environment["PILOTAGE_SERVER"], command.environment["PILOTAGE_TOKEN"]) as client:
        (job_id,) = client.submit([JobDescription("/bin/true", name="mine")]).job_ids
    script = tmp_path / "script"
    script.write_text(command("completion", shell))

    def completed(line: str) -> str:
        return subprocess.run(
            [program, "-c", _COMPLETE[shell].format(script=script, line=line)],
            env=command.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "status" in completed("pilotage stat")
    assert str(job_id) in completed(f"pilotage wait {str(job_id)[0]}")
    assert "state" in completed("pilotage status -o sta")


_COMPLETE = {
    "bash": "source {script}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
    '_pilotage_completion pilotage; printf "%s\\n" "${{COMPREPLY[@]}}"',
    # The builtins of completion need an interactive line editor; here they print the array that they get.
    "zsh": "compdef() {{ }}; _describe() {{ print -l -- ${{(P)3}}; }}; compadd() {{ print -l -- ${{(P)5}}; }}; "
    "source {script}; words=({line}); CURRENT=${{#words}}; _pilotage_completion",
    "fish": "source {script}; complete --do-complete '{line}'",
}
"""What prints the completions of a line in each shell."""
