"""The tools of users from PyPI, in an environment of their own with the wheel of this checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.debian import MissingComponentError, find_or_install
from support.packages import CHECKOUT, THIS_PYTHON

EXTRAS = "snakemake,parsl"
TOOLS = ("snakemake>=9", "nbclient>=0.10", "ipykernel>=6.29", "pandas>=2.2")
_SOURCES = ("proto", "client")


@pytest.fixture(scope="session")
def tools() -> Path:
    """Return the environment; jobs see it if `pilotage up` has it as a `--writable` path.

    It is kept for later runs. Its Python must not be in the home folder, which jobs do not see.
    """
    folder = Path(tempfile.gettempdir(), f"pilotage-tools-{os.geteuid()}-{_digest(str(CHECKOUT).encode())}")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder)
    return folder


def tool_environment(tools: Path, home: Path, **variables: str) -> dict[str, str]:
    """Return the environment variables of a user of the tools."""
    return {"HOME": str(home), "PATH": f"{tools / 'bin'}:{os.environ['PATH']}", **variables}


def _install(folder: Path) -> None:
    stamp = folder / "stamp"
    wanted = _digest(*(file.read_bytes() for file in _sources()), *map(str.encode, (EXTRAS, *TOOLS)))
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    python = find_or_install(_visible_python, f"python{THIS_PYTHON}")
    with tempfile.TemporaryDirectory() as built:
        _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", built)
        (wheel,) = Path(built).glob("*.whl")
        if not (folder / "bin" / "python").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run(str(python), "-m", "venv", "--without-pip", str(folder))
        pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet")
        try:
            _run(*pip, f"{wheel}[{EXTRAS}]", *TOOLS)
            _run(*pip, "--no-deps", "--force-reinstall", str(wheel))
        except MissingComponentError as error:
            if os.environ.get("CI") == "true":
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
    stamp.write_text(wanted)


def _sources() -> list[Path]:
    files = [*(file for name in _SOURCES for file in (CHECKOUT / name).rglob("*.py")), CHECKOUT / "pyproject.toml"]
    return sorted(files)


def _visible_python() -> Path | None:
    """Return a Python of this version that is outside of the home folder; None = there is none."""
    name = f"python{THIS_PYTHON}"
    found = [getattr(sys, "_base_executable", sys.executable), *(f"{path}/{name}" for path in os.get_exec_path())]
    for path in map(Path, [*found, f"/usr/bin/{name}"]):
        if path.is_file() and not path.resolve().is_relative_to(Path.home().resolve()):
            return path.resolve()
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingComponentError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")


def _digest(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]
