"""The demonstration, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_WITHIN_S = 60


def test_the_demo_runs_the_examples_explains_the_one_that_fits_nowhere_and_ends_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotage_client.main", "demo", "--examples", str(ROOT / "deploy" / "examples")]
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
    command = [sys.executable, "-m", "pilotage_client.main", "demo", "--examples", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert ran.returncode == 2
    assert f"{tmp_path}/hello.toml: there is no such file" in ran.stderr
