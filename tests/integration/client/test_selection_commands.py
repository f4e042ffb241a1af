"""The options that select jobs, on all commands that show or change them, and the question before many changes."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from support.commands import WAIT_TIMEOUT_S, Command, environment_of
from support.server import RunningServer
from support.wire_grid import WireGrid

JOBS = 101
"""One job more than are changed without a question."""


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
def pilotage(grid: WireGrid, shared_server: RunningServer, tmp_path: Path) -> Command:
    """Return the command line of the user who owns the jobs."""
    token = shared_server.token(vo=grid.vo)
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=shared_server.address, PILOTAGE_TOKEN=token))


def submitted(grid: WireGrid, name: str, count: int) -> list[int]:
    return grid.submit(JobDescription("/bin/true", name=name, count=count))


def answered(pilotage: Command, answer: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard input is a terminal, at which someone types an answer."""
    terminal, theirs = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    try:
        return subprocess.run(
            ["pilotage", *map(str, arguments)],
            env=pilotage.environment,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(theirs)


def test_many_changes_are_confirmed_at_a_terminal(grid: WireGrid, pilotage: Command) -> None:
    ids = submitted(grid, "sim-$(Process)", JOBS)
    question = f"pilotage: hold changes {JOBS} jobs of alice\nGo on?"
    refused = answered(pilotage, "n", "hold", "--name", "sim-*")
    assert (refused.returncode, question in refused.stderr) == (1, True)
    assert len(pilotage.json_objects("status", "--jobs", "--state", "waiting")) == JOBS
    assert answered(pilotage, "n", "hold", ids[0]).returncode == 1  # a whole cluster is as many
    made = answered(pilotage, "y", "hold", "--name", "sim-*")
    assert (made.returncode, made.stdout) == (0, f"{JOBS} jobs are HELD: {ids[0]}-{ids[-1]}\n")
    again = answered(pilotage, "y", "hold", f"{ids[0]}-{ids[-1]}")
    assert f"hold: 0 changed, {JOBS} were HELD already" in again.stderr
    for command in (("release", ids[0]), ("hold", "--state", "waiting", "--yes")):  # neither a terminal nor a question
        assert len(pilotage(*command).splitlines()) == 1


def test_all_commands_take_the_same_options(grid: WireGrid, pilotage: Command) -> None:
    ids = submitted(grid, "sim-$(Process)", 3)
    (other,) = submitted(grid, "ana", 1)
    options = ("--name", "sim-[12]", "--where", 'ProcId >= 1 && Owner == "ALICE"')
    assert [job["id"] for job in pilotage.json_objects("status", *options)] == ids[1:]
    assert [job["id"] for job in pilotage.json_objects("status", *ids, other, "--name", "a*")] == [other]
    assert pilotage("status", "--name", "sim-*", "--af:h", "ProcId", "Owner", "1 + 1") == (
        "ProcId Owner 1 + 1\n0      alice 2\n1      alice 2\n2      alice 2\n"
    )
    assert pilotage("ad", ids[1], "--af", "ProcId") == "1\n"
    assert pilotage("status", "--count") == "4 jobs: 4 WAITING\n"
    assert pilotage("why", *options).count("It waits") == 2
    assert pilotage("events", *options).count("==> job") == 2
    pilotage("edit", f"{ids[0]}-{ids[1]}", "--set", "priority=7")
    pilotage("edit", "--name", "ana", "--set", "priority=8")
    priorities = pilotage("ad", *ids, other, "--af", "JobPrio").split()
    assert priorities == ["7", "7", "0", "8"]
    pilotage("remove", f"{ids[0]}.0-1", "--where", "JobPrio == 7", "--dry-run")
    assert pilotage("remove", f"{ids[0]}.0-2", "--where", "JobPrio == 7").splitlines() == [
        f"job {job} is REMOVED" for job in ids[:2]
    ]
    assert pilotage.run("wait", "--name", "sim-[01]").returncode == 1  # they were removed
    nothing = pilotage.run("why", "--name", "none")
    assert (nothing.returncode, nothing.stderr) == (2, "pilotage: there is no job that meets the condition\n")
