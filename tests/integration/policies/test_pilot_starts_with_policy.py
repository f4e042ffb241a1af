"""The pilot command with a policy: errors at start, and reload on SIGHUP."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import run_pilot
from support.process_grid import ProcessGrid, a_process_grid, read_text
from support.processes import until

pytestmark = pytest.mark.process

LIBRARY = ("htcondor2", "classad2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("START = True\nnonsense\n", "policy.conf, line 2: HTCondor's parser does not understand this: nonsense"),
        ("START = ((\n", "policy.conf, line 1: START: "),
        ("USER_JOB_WRAPPER = /no/such/wrapper\n", "USER_JOB_WRAPPER: there is no file /no/such/wrapper"),
        (None, "policy.conf: cannot be read: No such file or directory"),
    ],
)
def test_invalid_policy_stops_the_pilot_at_start(tmp_path: Path, text: str | None, message: str) -> None:
    policy = tmp_path / "policy.conf"
    if text is not None:
        policy.write_text(text)
    code, lines, leftovers = run_pilot(tmp_path, policy=str(policy))
    assert (code, leftovers) == (2, [])
    assert lines[-1].startswith("pilotage-pilot: ")
    assert message in lines[-1]


def test_pilot_with_policy_needs_the_classad_library(tmp_path: Path) -> None:
    policy = tmp_path / "policy.conf"
    policy.write_text("START = True\n")
    code, lines, leftovers = run_pilot(tmp_path, *LIBRARY, policy=str(policy))
    assert (code, leftovers) == (2, [])
    assert "policy.conf: cannot be used: HTCondor's Python package, which reads ClassAds, is not installed" in lines[-1]


def test_pilot_without_library_logs_the_built_in_policy(tmp_path: Path) -> None:
    code, lines, leftovers = run_pilot(tmp_path, *LIBRARY)
    assert (code, leftovers) == (3, [])
    built_in = next(json.loads(line) for line in lines if "built-in policy" in line)
    assert "HTCondor's library, which a policy needs, is not installed" in built_in["why"]


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path) as grid:
        yield grid


async def test_sighup_reloads_the_policy_while_jobs_run(grid: ProcessGrid, tmp_path: Path) -> None:
    policy = tmp_path / "policy.conf"
    policy.write_text("START = True\n")
    job_id = grid.submit(script="while ! [ -e go ]; do sleep 0.1; done")
    async with grid.pilot(policy=str(policy), max_idle_s=0) as pilot:
        await until(lambda: "job granted" in read_text(pilot.log))
        policy.write_text("START = ((\n")
        pilot.process.send_signal(signal.SIGHUP)
        await until(lambda: "policy not read again" in read_text(pilot.log))
        policy.write_text("START = False\n")
        pilot.process.send_signal(signal.SIGHUP)
        await until(lambda: "policy read again" in read_text(pilot.log))
        next(pilot.scratch.glob(f"*/jobs/{job_id}.1/work")).joinpath("go").touch()
        assert (await grid.done(job_id)).exit_code == 0
        assert (await pilot.ends())[0] == 0
