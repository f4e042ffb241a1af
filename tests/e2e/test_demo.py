"""The demonstration, as `make demo` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.clock import boot_time_s

ROOT = Path(__file__).parents[2]
_WITHIN_S = 180


def test_the_demo_runs_the_examples_explains_the_one_that_fits_nowhere_and_ends_well(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pilotage_client.cli.main",
        "demo",
        "--examples",
        str(ROOT / "deploy" / "examples"),
    ]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for said in (
        "hello.out: Hello from job",
        "square.out: 5 squared is 25",
        "rfc7.out: I ran where AppVersion1 and an Intel Xeon are offered.",
        "words.1.out: 9 words.txt",
        "Geneva/ce1.geneva.example/long",
        "(nowhere) waits",
        "SoftwareTag  AppVersion9",
    ):
        assert said in ran.stdout
    assert list(tmp_path.glob("pilotage-demo-*")) == []


def test_a_demo_without_its_examples_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotage_client.cli.main", "demo", "--examples", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert ran.returncode == 2
    assert f"{tmp_path}/hello.toml: no such file" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_demo_nothing_of_it_is_left_running(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "pilotage_client.cli.main",
        "demo",
        "--examples",
        str(ROOT / "deploy" / "examples"),
    ]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("== The stack is up" in line for line in demo.stdout)
        demo.send_signal(number)
        demo.communicate(timeout=_WITHIN_S)
    assert demo.returncode == (-number if number is signal.SIGKILL else 1)
    if number is not signal.SIGKILL:
        assert list(tmp_path.glob("pilotage-demo-*")) == []
    give_up_s = boot_time_s() + _WITHIN_S
    while left := _processes_of(tmp_path):
        assert boot_time_s() < give_up_s, left


def test_the_demo_outlasts_the_death_of_its_server(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pilotage_client.cli.main",
        "demo",
        "--examples",
        str(ROOT / "deploy" / "examples"),
    ]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("== Progress" in line for line in demo.stdout)
        (server,) = _processes_of(tmp_path, "pilotage-server")
        os.kill(int(server), signal.SIGKILL)
        printed, _ = demo.communicate(timeout=2 * _WITHIN_S)
    assert demo.returncode == 0, printed
    assert "trying again for up to" in printed


def _processes_of(folder: Path, program: str = "") -> list[str]:
    """Return the ids of the processes whose command line has the folder and the program in it."""
    marks, found = (str(folder).encode(), program.encode()), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        found += [path.parent.name] if all(mark in line for mark in marks) else []
    return found
