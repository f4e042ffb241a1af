"""Options of command lines that give settings: precedence, places of faults, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pilotage.errors import InvalidInputError
from pilotage.settings import ProgramSettings, Section
from pilotage.settings_options import add_settings_options, read_settings_options, report_faults


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


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    names = {"breaker.pause_s": ("-p", "--pause")}
    add_settings_options(parser, SampleSettings, ("server", "share", "breaker.pause_s"), names)
    return parser.parse_args(arguments)


def read(*arguments: str) -> SampleSettings:
    return read_settings_options(SampleSettings, parsed(arguments))


def faults(*arguments: str) -> list[str]:
    with pytest.raises(InvalidInputError) as error:
        read(*arguments)
    return [str(violation) for violation in error.value.violations]


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

    with pytest.raises(SystemExit) as ended:
        read("--config", str(file), "--server", "a", "--set", "breaker.watch=false", "--show-settings")

    assert ended.value.code == 0
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
    with pytest.raises(SystemExit) as ended:
        read("--server", "a", "--check-settings")
    assert (ended.value.code, capsys.readouterr().out) == (0, "")
    assert faults("--check-settings")


def test_help_shows_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--server SERVER The servers; repeatable [required; SAMPLE_SERVER]" in shown
    assert "--share SHARE A share, 100 % = all [default: 0.5; SAMPLE_SHARE]" in shown
    assert "-p S, --pause S A time [default: 60]" in shown


def test_each_fault_is_one_line_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInputError) as error:
        read("--server", "a", "--share", "2", "--set", "breaker.watch=maybe")
    report_faults("sample", error.value)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["sample", "--share"], ["sample", "--set breaker.watch"]]
