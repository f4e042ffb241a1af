"""The wheel in new virtual environments: the client with its oldest dependencies, then all programs with the newest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.packages import CHECKOUT
from support.process_grid import ProcessGrid, a_process_grid

pytestmark = [pytest.mark.process, pytest.mark.slow]

_LOWER_BOUND = re.compile(r"([a-z-]+)>=([0-9.]+)")

_LIKE_MACOS = """
import sys, time
del time.CLOCK_BOOTTIME
sys.platform = "darwin"
sys.modules["htcondor2"] = sys.modules["classad2"] = None
from pilotage_client.cli.main import main
main()
"""


class Installation:
    """A virtual environment with the wheel, and an empty folder in which its programs run."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._wheel = wheel
        self.folder = folder / "work"
        self.folder.mkdir()
        self._programs = folder / "venv" / "bin"
        venv.create(folder / "venv", symlinks=True)

    def install(self, extra: str = "", *constraints: str) -> None:
        what = f"{self._wheel}[{extra}]" if extra else str(self._wheel)
        pip = (sys.executable, "-m", "pip", "--python", str(self._programs / "python"), "install")
        self._run(*pip, "--quiet", "--disable-pip-version-check", "--upgrade", what, *constraints).check_returncode()

    def run(self, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program, by its name, to its end."""
        return self._run(str(self._programs / program), *arguments, **environment)

    def _run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTAGE", "PYTHON"))}
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**kept, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Return an installation without extras, at the lowest versions that the wheel allows."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    bounds = [_LOWER_BOUND.match(each) for each in project["dependencies"]]
    installation = Installation(wheel, tmp_path_factory.mktemp("client"))
    installation.install("", *(f"{each[1]}=={each[2]}" for each in bounds if each is not None))
    return installation


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path) as grid:
        yield grid


def test_client_with_oldest_dependencies_submits_every_language(client: Installation, grid: ProcessGrid) -> None:
    done = client.run("pilotage", "init", "files")
    assert (done.returncode, done.stderr) == (0, "")
    grid.put_tree(tomllib.loads((client.folder / "files" / "examples" / "tree.toml").read_text()))
    login = {"PILOTAGE_SERVER": grid.server.address, "PILOTAGE_TOKEN": grid.user_token()}
    for name in ("array.toml", "requirements.jdl", "words.submit"):
        done = client.run("pilotage", "submit", f"files/examples/{name}", **login)
        assert (done.returncode, done.stderr) == (0, ""), name
    done = client.run("pilotage", "status", "--jobs", **login)
    assert done.stdout.count("WAITING") == 9
    assert "waits" in client.run("pilotage", "why", "1", **login).stdout


def test_files_are_copied_once(client: Installation) -> None:
    client.run("pilotage", "init", "twice")
    assert os.access(client.folder / "twice" / "policies" / "whole_machine_job_wrapper", os.X_OK)
    assert (client.folder / "twice" / "monitoring" / "alerts.yml").is_file()
    (client.folder / "twice" / "policies" / "bologna.conf").write_text("changed")
    done = client.run("pilotage", "init", "twice")
    assert (done.returncode, "twice/policies: exists" in done.stderr) == (2, True)
    assert (client.folder / "twice" / "policies" / "bologna.conf").read_text() == "changed"


@pytest.mark.parametrize("program", ["pilotage", "pilotage-pilot"])
def test_programs_of_the_client_alone_show_their_version(client: Installation, program: str) -> None:
    done = client.run(program, "--version")
    assert (done.returncode, "0.1.0" in done.stdout, done.stderr) == (0, True, "")


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (("pilotage-server", "run"), "sqlmodel", "server"),
        (("pilotage-agents", "run"), "prometheus-client", "agents"),
        (("pilotage", "up", "--data", "data"), "sqlmodel", "all"),
        (("pilotage", "top"), "textual", "tui"),
    ],
)
def test_missing_extra_names_the_command_that_installs_it(
    client: Installation, command: tuple[str, ...], package: str, extra: str
) -> None:
    done = client.run(*command)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f" {package}" in done.stderr
    assert done.stderr.endswith(f": pip install 'pilotage[{extra}]'\n")


def test_client_works_as_far_as_it_can_without_htcondor_and_its_clock(client: Installation) -> None:
    client.run("pilotage", "init", "macos")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        return client.run("python", "-c", _LIKE_MACOS, "convert", f"macos/examples/{name}")

    assert run("hello.toml").returncode == 0
    for name in ("words.submit", "requirements.jdl"):
        done = run(name)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "HTCondor offers it for Linux only" in done.stderr


def test_demo_runs_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    installation = Installation(wheel, tmp_path)
    installation.install("all")
    assert "0.1.0" in installation.run("pilotage-server", "--version").stdout
    done = installation.run("pilotage", "demo", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "including start and stop of the stack" in done.stdout
