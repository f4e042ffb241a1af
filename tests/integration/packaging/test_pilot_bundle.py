"""The built pilot bundle on a Python without packages, with a real server."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.v1 import jobs_pb2
from support.packages import BARE_PYTHON, bare_environment, start
from support.process_grid import ProcessGrid, a_process_grid

pytestmark = pytest.mark.process


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path) as grid:
        yield grid


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def test_bundle_name_has_python_version_and_architecture(pilot_bundle: Path) -> None:
    *_, python, machine = pilot_bundle.stem.split("-")
    assert python == "cp" + "".join(platform.python_version_tuple()[:2])
    assert machine == os.uname().machine


@pytest.mark.parametrize("package", ["grpc", "pydantic", "pilotage"])
def test_bare_python_has_no_packages(package: str, scratch: Path) -> None:
    command = [*BARE_PYTHON, "-c", f"import {package}"]
    done = subprocess.run(command, env=bare_environment(scratch), capture_output=True, check=False)
    assert b"ModuleNotFoundError" in done.stderr


async def test_bundle_runs_a_job_on_a_bare_python(grid: ProcessGrid, pilot_bundle: Path, scratch: Path) -> None:
    job_id = grid.submit(script="env; pwd; exit 3")
    async with grid.pilot((*BARE_PYTHON, str(pilot_bundle)), bare_environment(scratch), max_idle_s=0) as pilot:
        code, _ = await pilot.ends()
    job = grid.job(job_id)
    assert (code, job.state, job.exit_code) == (0, jobs_pb2.JOB_STATE_FAILED, 3)
    # Nothing of the bundle's Python reaches the job.
    assert b"PYTHON" not in grid.output(job_id)["stdout"]
    assert str(scratch).encode() not in grid.output(job_id)["stdout"]


def test_bundle_checks_policies_in_a_separate_process(pilot_bundle: Path, scratch: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.conf"
    policy.write_text('START = TARGET.Owner == $(WHO)\nWHO = "alice"\n')
    done = start(pilot_bundle, "check", str(policy), "--cpus", "2", scratch=scratch, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'TARGET.Owner == "alice"' in done.stdout
