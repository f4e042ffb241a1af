"""Options of command lines that give settings: precedence, places of faults, and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pilotage.command_line.groups import HELP, ProgramGroup
from pilotage.command_line.settings_options import SettingsCommand, settings_options
from pilotage.settings import ProgramSettings, Section


class Breaker(Section):
    """A section."""

    watch: bool = Field(True, description="Whether it watches.")
    pause_s: float = Field(60, ge=1, description="A time.")


class PlainTarget(Section):
    """A section that stands in a table of sections."""

    folder: Path = Field(description="Its folder.")
    free: dict[str, Any] = Field({}, description="Settings of another program.")


class SampleSettings(ProgramSettings):
    """A program's settings."""

    model_config = SettingsConfigDict(env_prefix="SAMPLE_")

    server: tuple[str, ...] = Field(min_length=1, description="The servers.")
    token: SecretStr | None = Field(None, description="A secret.")
    share: float = Field(0.5, ge=0, le=1, description="A share, 100 % = all.")
    breaker: Breaker = Field(Breaker(), description="A breaker.")
    targets: dict[str, PlainTarget] = Field({}, description="Targets by name.")
    more: tuple[PlainTarget, ...] = Field((), description="Targets with free keys.")
    routes: Path | Breaker = Field(Path("routes"), description="A file, or a section.")
    free: dict[str, Any] = Field({}, description="Settings of another program.")


READ: list[SampleSettings] = []


@click.group("sample", cls=ProgramGroup, context_settings=HELP)
def program() -> None:
    """A program."""


@program.command(cls=SettingsCommand)
@settings_options(SampleSettings, ("server", "share", "breaker.pause_s"), {"breaker.pause_s": ("-p", "--pause")})
def run(settings: SampleSettings) -> None:
    """Read the settings."""
    READ.append(settings)


def read(*arguments: str) -> SampleSettings:
    assert program.run(["run", *arguments]) == 0
    return READ.pop()


def faults(*arguments: str) -> list[str]:
    """Return the lines of the standard error, without the name of the program."""
    done = CliRunner().invoke(program, ["run", *arguments])
    assert done.exit_code == 2
    return [line.removeprefix("sample: ") for line in done.stderr.splitlines()]


def test_option_wins_over_assignment_variable_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('server = ["file"]\nshare = 0.1\n[breaker]\nwatch = false\npause_s = 1\n')
    monkeypatch.setenv("SAMPLE_SHARE", "0.2")
    monkeypatch.setenv("SAMPLE_BREAKER", '{"pause_s": 2}')
    given = ["--config", str(file), "--set", "share=0.3", "--set", "breaker.pause_s=3"]

    assert read(*given[:2]).share == 0.2
    assert (read(*given).share, read(*given).breaker) == (0.3, Breaker(watch=False, pause_s=3))
    assert read(*given, "-p", "4", "--share", "0.4") == SampleSettings(
        server=("file",), share=0.4, breaker=Breaker(watch=False, pause_s=4)
    )
    assert read(*given, "--server", "a", "--server", "b").server == ("a", "b")


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ('server=["a", "b"]', "server", ("a", "b")),
        ("targets.x.folder=y = z", "targets", {"x": PlainTarget(folder=Path("y = z"))}),
        ('targets={"x.y": {"folder": "z"}}', "targets", {"x.y": PlainTarget(folder=Path("z"))}),
        ("routes=other", "routes", Path("other")),
        ('routes={"watch": false}', "routes", Breaker(watch=False)),
        ("free.idle_s=5", "free", {"idle_s": 5}),
        ("free.path=/x", "free", {"path": "/x"}),
    ],
)
def test_assignment_gives_any_setting(assignment: str, name: str, value: object) -> None:
    assert getattr(read("--set", 'server=["z"]', "--set", assignment), name) == value


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--share", "2"], "--share: input should be less than or equal to 1"),
        (["-p", "soon"], "--pause: input should be a valid number"),
        (["--set", "share=2"], "--set share: input should be less than or equal to 1"),
        (["--set", "breaker.wach=true"], "--set breaker.wach: is no setting; did you mean watch?"),
        (["--set", "targets.x.dir=y"], "--set targets.x.dir: is no setting"),
        (["--set", "server=a"], "--set server: is not a list, written as JSON"),
        (["--set", "breaker=on"], "--set breaker: is not a table, written as JSON"),
        (["--set", "share"], "--set share: is not KEY=VALUE"),
        (["--set", "=5"], "--set =5: is not KEY=VALUE"),
    ],
)
def test_fault_names_the_option(arguments: list[str], fault: str) -> None:
    found = faults("--set", 'server=["a"]', *arguments)
    assert any(each.startswith(fault) for each in found), found


def test_missing_setting_names_all_its_sources(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text("share = 1\n")
    ways = "is not set; give it by --server, by SAMPLE_SERVER or in the settings file"
    assert faults() == [f"server: {ways}"]
    assert faults("--config", str(file)) == [f"{file}: server: {ways}"]


def test_shows_each_setting_with_its_source_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sample.toml"
    file.write_text(
        'share = 1\n[free]\ntoken = "hush"\n[targets.x]\nfolder = "y"\n[[more]]\nfolder = "z"\nfree = { a = 1 }\n'
    )
    monkeypatch.setenv("SAMPLE_TOKEN", "hush")

    given = ["--config", str(file), "--server", "a", "--set", "breaker.watch=false", "--show-settings"]
    assert program.run(["run", *given]) == 0
    assert not READ
    assert capsys.readouterr().out.splitlines() == [
        'server = ["a"]  # --server',
        'token = "**********"  # SAMPLE_TOKEN',
        f"share = 1.0  # {file}: share",
        "breaker.watch = false  # --set breaker.watch",
        "breaker.pause_s = 60.0  # default",
        f'targets.x.folder = "y"  # {file}: targets.x.folder',
        "targets.x.free = {}  # default",
        f'more = [{{"folder": "z", "free": {{"a": "**********"}}}}]  # {file}: more',
        'routes = "routes"  # default',
        f'free.token = "**********"  # {file}: free.token',
    ]


def test_check_reads_the_settings_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["run", "--server", "a", "--check-settings"]) == 0
    assert (READ, capsys.readouterr().out) == ([], "")
    assert faults("--check-settings")


def test_help_shows_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["run", "-h"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--server SERVER The servers; repeatable [required; SAMPLE_SERVER]" in shown
    assert "--share SHARE A share, 100 % = all [default: 0.5; SAMPLE_SHARE]" in shown
    assert "-p, --pause S A time [default: 60]" in shown


def test_each_fault_is_one_line_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["run", "--server", "a", "--share", "2", "--set", "breaker.watch=maybe"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["sample", "--share"], ["sample", "--set breaker.watch"]]
