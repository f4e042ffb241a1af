"""The wheel with the server's hot modules compiled, built once in a run of tests, and unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from support.debian import found_or_installed

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def compiled_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds what the compiled wheel does; it is optimised little, which is sooner done."""
    found_or_installed(lambda: shutil.which("cc"), "build-essential")
    found_or_installed(_python_header, "python{}.{}-dev".format(*sys.version_info))
    folder = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    asked = {"PILOTAGE_COMPILED": "1", "PILOTAGE_COMPILED_LEVEL": "0"}
    done = subprocess.run(command, cwd=CHECKOUT, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "packages")
    return folder / "packages"


def _python_header() -> Path | None:
    """Return what C code includes that is made for this Python; None = it is not here."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return header if header.is_file() else None


def hot_modules() -> tuple[str, ...]:
    """Return the names of the modules that are to be compiled."""
    tables = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    return tuple(tables["tool"]["hatch"]["build"]["hooks"]["custom"]["compiled"])


def run_with(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python on the packages in a folder, and return what became of it."""
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(packages), "HYPOTHESIS_PROFILE": "brief"}
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
