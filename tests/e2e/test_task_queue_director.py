"""A task-queue director with real processes: a workload manager lands its pilots on different queues."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_server.core.identity import AgentBounds, Role
from support.commands import PROGRAMS, run_pilot
from support.payload_paths import payload_lines
from support.server import RunningServer, running_server
from support.workload_manager import commands

pytestmark = pytest.mark.process

WAIT_TIMEOUT_S = 120.0
RED, BLUE, OUTSIDE = "Lyon/ce1/red", "RAL/ce2/blue", "CERN/ce3/green"
SET = ("Lyon/*/*", "RAL/*/*")
TREE = {
    "sites": {
        site: {"ces": {ce: {"queues": {queue: {"CPUs": 1, "Colour": queue}}}}}
        for site, ce, queue in (name.split("/") for name in (RED, BLUE, OUTSIDE))
    }
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def operator(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, server.token(Role.OPERATOR)) as client:
        client.put_tree(json.dumps(TREE), "json")
        yield client


def configuration(folder: Path, server: RunningServer, *places: str) -> Path:
    """Write the configuration of a director whose workload manager has these places."""
    bounds = AgentBounds(queues=SET, turns=("task-queue director of lyon/*/*, ral/*/*",))
    (folder / "agent.token").write_text(server.token(Role.DIRECTOR, owner="agent:grid", bounds=bounds))
    manager = "\n".join(f"{name} = {json.dumps(words)}" for name, words in commands(folder / "wms", *places).items())
    path = folder / "agents.toml"
    path.write_text(f"""
server = "{server.address}"
token_file = "agent.token"
[task_queue_director]
folder = "director"
queues = {json.dumps(SET)}
interval_s = 0.5
urgent_interval_s = 0.5
when_stopped = "cancel"
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[task_queue_director.pilot]
{payload_lines(folder, folder)}
cgroups = false
heartbeat_s = 1
max_idle_s = 60
scratch = {json.dumps(str(folder))}
[task_queue_director.batch_systems.grid]
type = "command"
{manager}
""")
    return path


@contextmanager
def running_director(config: Path) -> Iterator[None]:
    command = [str(PROGRAMS / "pilotage-agents"), "task-queue-director", "--config", str(config)]
    with (config.parent / "director.log").open("ab") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(WAIT_TIMEOUT_S)


def test_pilots_run_the_jobs_of_the_queues_that_they_land_on(
    tmp_path: Path, server: RunningServer, operator: Client
) -> None:
    config = configuration(tmp_path, server, RED, BLUE)
    with Client(server.address, server.token(Role.USER)) as user, running_director(config):
        jobs = [JobDescription("/bin/true", requirements={"Colour": colour}) for colour in ("red", "blue")]
        ended = user.wait(user.submit(jobs).job_ids, WAIT_TIMEOUT_S)
        assert [(job.state, f"{job.site}/{job.ce}/{job.queue}") for job in ended] == [("DONE", RED), ("DONE", BLUE)]
        pilots = operator.pilots(ended=True)
    assert sorted(f"{pilot.site}/{pilot.ce}/{pilot.queue}" for pilot in pilots) == [RED, BLUE]
    assert {tuple(pilot.queue_set) for pilot in pilots} == {SET}


def test_pilot_outside_the_set_prints_the_refusal_and_ends(
    tmp_path: Path, server: RunningServer, operator: Client
) -> None:
    secret = operator.register_pilot(None, queue_set=SET).token
    address = {"server": [server.address], "token": secret}
    (tmp_path / "outside").mkdir()
    code, lines, _ = run_pilot(tmp_path / "outside", **address, queue_name=OUTSIDE)
    assert code != 0
    assert any(f"it is in the queue {OUTSIDE}, but its enrolment secret is for" in line for line in lines)
    for name, settings, why in (
        ("unsaid", {}, "queue_name: is missing"),
        ("failing", {"queue_command": ["false"]}, "queue_command: false: exit code 1"),
        ("unnamed", {"queue_command": ["echo", "red"]}, 'queue_command: "red" does not name a queue'),
    ):
        (tmp_path / name).mkdir()
        code, lines, _ = run_pilot(tmp_path / name, **address, **settings)
        assert code == 2
        assert lines[-1].startswith(f"pilotage-pilot: {why}")
    (tmp_path / "inside").mkdir()
    run_pilot(tmp_path / "inside", **address, queue_command=["echo", RED], max_idle_s=0)
    (pilot,) = operator.pilots(ended=True)
    assert f"{pilot.site}/{pilot.ce}/{pilot.queue}" == RED
