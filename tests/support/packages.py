"""Packages that are built once in a test run: pilot bundles, and the wheel with compiled modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_bundle import main, write_bundle
from support.debian import found_or_installed

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
