"""Pilot bundles: the real one, built once in a run of tests, and small ones that only say how they were started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build_bundle import main, write_bundle

BARE_PYTHON = (str(getattr(sys, "_base_executable", sys.executable)), "-I", "-S")
"""A Python that finds nothing but its own modules."""

THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

_SAYS_HOW = """
import os, sys
import data
print(sys.executable, sys.argv[1:], sys.flags.isolated, data.TEXT)
"""


@pytest.fixture(scope="session")
def pilot_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle that `make pilot-bundle` builds here."""
    folder = tmp_path_factory.mktemp("bundle")
    main(["--to", str(folder)])
    (bundle,) = folder.iterdir()
    return bundle


def a_bundle(folder: Path, text: str = "first", **made_for: Any) -> Path:
    """Return a bundle of this machine whose pilot says how it was started; `made_for` wins over what is true."""
    site = folder / f"site of {text}"
    (site / "pilotage_pilot").mkdir(parents=True)
    (site / "pilotage_pilot" / "main.py").write_text(_SAYS_HOW)
    (site / "data.py").write_text(f"TEXT = {text!r}\n")
    write_bundle(folder / f"{text}.pyz", site, {"python": THIS_PYTHON, "machine": os.uname().machine, **made_for})
    return folder / f"{text}.pyz"


def start(bundle: Path, *arguments: str, scratch: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a bundle in a folder with a bare Python that has no home, and return what became of it."""
    return subprocess.run(
        [*BARE_PYTHON, str(bundle), *arguments],
        cwd=folder,
        env=bare_environment(scratch),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def bare_environment(scratch: Path) -> dict[str, str]:
    """Return the variables of a batch job that knows of no home, and of nothing of ours."""
    return {"PATH": "/usr/bin:/bin", "TMPDIR": str(scratch)}
