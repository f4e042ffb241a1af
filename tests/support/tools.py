"""Tools of users from PyPI, each in an environment of its own, with the wheel of this checkout where it needs that."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import WAIT_TIMEOUT_S
from support.debian import installation_lock, skip_or_fail
from support.packages import CHECKOUT, THIS_PYTHON, built_wheel

TOOLS = {
    "snakemake": ("pilotage[snakemake]", "snakemake>=9"),
    "parsl": ("pilotage[parsl]",),
    "notebook": ("pilotage", "nbclient>=0.10", "ipykernel>=6.29", "pandas>=2.2"),
    "htcondor": ("law==0.1.21", "dask-jobqueue==0.9.0"),
}
"""What is installed for each tool; `pilotage` is the wheel."""

InstallTool = Callable[[str], Path]


@pytest.fixture(scope="session")
def install_tool(common_python: Path, tmp_path_factory: pytest.TempPathFactory) -> InstallTool:
    """Return a function that returns the environment of one of `TOOLS`, and installs it first if that is needed.

    Environments stay for later test runs. Jobs see one that `pilotage up` has as a `--writable` path.
    """
    wheel = built_wheel(CHECKOUT, tmp_path_factory.mktemp("wheel"))
    checkout = zlib.crc32(str(CHECKOUT).encode())
    folder = Path(tempfile.gettempdir(), f"pilotage-tests-tools-{os.geteuid()}-{THIS_PYTHON}-{checkout:x}")

    def install(tool: str) -> Path:
        environment, stamp = folder / tool, folder / tool / "installed"
        wanted = hashlib.sha256(repr((TOOLS[tool], str(common_python))).encode() + wheel.read_bytes()).hexdigest()
        with installation_lock(f"{tool}-{checkout:x}"):
            if not (stamp.exists() and stamp.read_text() == wanted):
                _uv("venv", "--clear", "--python", str(common_python), str(environment))
                packages = [package.replace("pilotage", str(wheel)) for package in TOOLS[tool]]
                _uv("pip", "install", "--python", str(environment), *packages)
                stamp.write_text(wanted)
        return environment

    return install


def tool_environment(tool: Path, home: Path, **variables: str) -> dict[str, str]:
    """Return the environment variables of a user with a tool on PATH."""
    return {"HOME": str(home), "PATH": f"{tool / 'bin'}:{os.environ['PATH']}", **variables}


def run_python(tool: Path, folder: Path, *arguments: str | Path, **variables: str) -> str:
    """Run the Python of a tool in a folder, which is also the home folder; returns its output."""
    done = subprocess.run(
        [tool / "bin" / "python", *arguments],
        cwd=folder,
        env=tool_environment(tool, folder, **variables),
        capture_output=True,
        text=True,
        timeout=3 * WAIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip_or_fail(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
