"""A race between a straggler and its copy at another site, with real server, agents and pilots."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pilotage_server.core.identity import Role
from support.commands import KEYS, PROGRAMS, Command, environment_of
from support.payload_paths import payload_lines
from support.processes import processes_with, until
from support.server import RunningServer, running_server

TREE = """
[sites.Here.ces.ce1]
CEType = "local"
queues = { q = { CPUs = 1, Memory = 500, MaxTotalJobs = 1 } }
[sites.There.ces.ce1]
CEType = "local"
queues = { q = { CPUs = 1, Memory = 500, MaxTotalJobs = 1 } }
"""
SCRIPT = """#!/bin/sh
if mkdir "$1/straggles"; then
    sleep 1000
fi
echo the answer is 42
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "server", heartbeat_s=1) as started:
        yield started


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    token = server.token(Role.USER, Role.OPERATOR)
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


@pytest.fixture
def agents(server: RunningServer, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "agent.token").write_text(server.token(Role.DIRECTOR, Role.RACER, owner="agent:test"))
    config = tmp_path / "agents.toml"
    config.write_text(f"""
server = "{server.address}"
token_file = "agent.token"
turn_s = 10
[site_director]
folder = "director"
interval_s = 0.3
urgent_interval_s = 0.3
when_stopped = "cancel"
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[site_director.pilot]
{payload_lines(tmp_path)}
cgroups = false
heartbeat_s = 1
grace_s = 1
[site_director.batch_systems.here]
type = "local"
[racer]
urgent_after_s = 0
interval_s = 0.3
""")
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "agents.log").open("wb"))
        command = [str(PROGRAMS / "pilotage-agents"), "run", "--config", str(config)]
        process = stack.enter_context(subprocess.Popen(command, stderr=log))
        yield
        process.terminate()


@pytest.mark.usefixtures("agents")
async def test_race_copy_wins_and_the_straggler_is_stopped(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "tree.toml").write_text(TREE)
    pilotage("tree", "put", tmp_path / "tree.toml")
    (tmp_path / "answer.sh").write_text(SCRIPT)
    (tmp_path / "answer.sh").chmod(0o755)
    (tmp_path / "answer.submit").write_text(
        f"executable = answer.sh\narguments = {tmp_path}\noutput = out\n"
        "+MayBeRepeated = true\n+Urgent = true\nrequest_cpus = 1\nqueue\n"
    )
    (submitted,) = pilotage.json_objects("submit", tmp_path / "answer.submit")
    (job_id,) = submitted["jobs"]
    (job,) = pilotage.json_objects("wait", job_id, "--timeout", 60)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("DONE", 0, 2)
    assert pilotage("output", job_id, "--file", "out") == "the answer is 42\n"
    (race,) = pilotage.json_objects("races", job_id)
    assert list(race) == list(KEYS["races"])
    (copy,) = race["copies"]
    assert (race["winner"], copy["state"], copy["site"]) == (copy["id"], "DONE", job["site"])
    assert race["lost_core_s"] > 0
    (cost,) = pilotage.json_objects("races", "--costs")
    assert list(cost) == list(KEYS["races --costs"])
    assert (cost["races"], cost["won_by_copies"]) == (1, 1)
    assert [status["id"] for status in pilotage.json_objects("status", "--jobs", "--all")] == [job_id], (
        "the copy is hidden from the owner"
    )
    assert (tmp_path / "straggles").exists()
    await until(lambda: not processes_with(f"answer.sh\0{tmp_path}"))
    assert "the job itself" in pilotage("races")
