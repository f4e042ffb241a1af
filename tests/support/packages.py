"""Packages that are built or installed once in a test run: bundles, wheels, and an earlier release."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_bundle import main, write_bundle
from support.debian import find_or_install

CHECKOUT = Path(__file__).parents[2]

BARE_PYTHON = (str(getattr(sys, "_base_executable", sys.executable)), "-I", "-S")
"""A Python with the standard library only."""

THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

PREVIOUS_RELEASE = "9441935d0cdc7a0bf0520fefc88a04cead9ff112"
"""The commit of the release before this one; until there is one, the last commit with its schema, 0001."""

_PRINTS_ITS_START = """
import os, sys
import data
print(sys.executable, sys.argv[1:], sys.flags.isolated, data.TEXT)
"""


@pytest.fixture(scope="session")
def pilot_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle that `make pilot-bundle` builds."""
    folder = tmp_path_factory.mktemp("bundle")
    main(["--to", str(folder)])
    (bundle,) = folder.iterdir()
    return bundle


def a_bundle(folder: Path, text: str = "first", **made_for: Any) -> Path:
    """Return a bundle whose pilot prints how it was started; `made_for` overrides the facts of this machine."""
    site = folder / f"site of {text}"
    (site / "pilotage_pilot").mkdir(parents=True)
    (site / "pilotage_pilot" / "main.py").write_text(_PRINTS_ITS_START)
    (site / "data.py").write_text(f"TEXT = {text!r}\n")
    write_bundle(folder / f"{text}.pyz", site, {"python": THIS_PYTHON, "machine": os.uname().machine, **made_for})
    return folder / f"{text}.pyz"


def start(bundle: Path, *arguments: str, scratch: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a bundle in a folder with a bare Python and without HOME; returns the ended process."""
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
    """Return the environment of a batch job without HOME and without any Pilotage variable."""
    return {"PATH": "/usr/bin:/bin", "TMPDIR": str(scratch)}


@pytest.fixture(scope="session")
def common_python() -> Path:
    """Return a Python of this version that payloads may run.

    They may have another account than root, and do not see the home folder.
    """
    this = Path(BARE_PYTHON[0]).resolve()
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in this.parents)
    if is_open and not this.is_relative_to(Path.home().resolve()):
        return this
    system = Path("/usr/bin", f"python{THIS_PYTHON}")
    return find_or_install(lambda: system if system.exists() else None, system.name)


@pytest.fixture(scope="session")
def compiled_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the compiled wheel, at a low optimisation level to build it fast."""
    find_or_install(lambda: shutil.which("cc"), "build-essential")
    find_or_install(_python_header, "python{}.{}-dev".format(*sys.version_info))
    folder = tmp_path_factory.mktemp("compiled")
    return _wheel_content(CHECKOUT, folder, PILOTAGE_COMPILED="1", PILOTAGE_COMPILED_LEVEL="0")


@pytest.fixture(scope="session")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the wheel of the previous release, built from the history.

    Without the whole history the test is skipped.
    """
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("the checkout has not the whole history, from which the previous release is built")
    folder = tmp_path_factory.mktemp("previous")
    archive = _git("archive", PREVIOUS_RELEASE)
    assert archive.returncode == 0, archive.stderr
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder / "sources", filter="data")
    return _wheel_content(folder / "sources", folder)


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, check=False)


def built_wheel(sources: Path, folder: Path, **options: str) -> Path:
    """Build the wheel of these sources with these environment variables into an empty folder, and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=sources, env=os.environ | options, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


def _wheel_content(sources: Path, folder: Path, **options: str) -> Path:
    """Return a folder with the content of the wheel of these sources."""
    with zipfile.ZipFile(built_wheel(sources, folder, **options)) as archive:
        archive.extractall(folder / "packages")
    return folder / "packages"


def _python_header() -> Path | None:
    """Return the header Python.h of this Python; None = it is not installed."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return header if header.is_file() else None


def hot_modules() -> tuple[str, ...]:
    """Return the names of the compiled modules."""
    tables = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    return tuple(tables["tool"]["hatch"]["build"]["hooks"]["custom"]["compiled"])


def run_with(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with the packages in a folder; returns the ended process."""
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(packages), "HYPOTHESIS_PROFILE": "brief"}
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
