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
TIMEOUT_S = 180
DEMO = [sys.executable, "-m", "pilotage_client.cli.main", "demo", "--examples", str(ROOT / "deploy" / "examples")]


def test_demo_runs_and_explains_the_examples(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "hello.out: Hello from job",
        "square.out: 5 squared is 25",
        "rfc7.out: I ran where AppVersion1 and an Intel Xeon are offered.",
        "words.1.out: 9 words.txt",
        "Geneva/ce1.geneva.example/long",
        "(nowhere) waits",
        "SoftwareTag  AppVersion9",
    ):
        assert text in done.stdout
    assert list(tmp_path.glob("pilotage-demo-*")) == []


def test_demo_without_examples_names_the_missing_file(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO[:-1], str(tmp_path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert f"{tmp_path}/hello.toml: no such file" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signalled_demo_leaves_no_processes(tmp_path: Path, number: signal.Signals) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("== The stack is up" in line for line in demo.stdout)
        demo.send_signal(number)
        demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == (-number if number is signal.SIGKILL else 130)
    if number is not signal.SIGKILL:
        assert list(tmp_path.glob("pilotage-demo-*")) == []
    deadline_s = boot_time_s() + TIMEOUT_S
    while remaining := _processes_of(tmp_path):
        assert boot_time_s() < deadline_s, remaining


def test_demo_survives_a_server_crash(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("== Progress" in line for line in demo.stdout)
        (server,) = _processes_of(tmp_path, "pilotage-server")
        os.kill(int(server), signal.SIGKILL)
        printed, _ = demo.communicate(timeout=2 * TIMEOUT_S)
    assert demo.returncode == 0, printed
    assert "trying again for up to" in printed


def _processes_of(folder: Path, program: str = "") -> list[str]:
    """Return the ids of the processes whose command line contains the folder and the program."""
    needles, found = (str(folder).encode(), program.encode()), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it ended meanwhile
            continue
        found += [path.parent.name] if all(needle in line for needle in needles) else []
    return found
