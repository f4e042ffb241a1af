"""Jobs that run in pilots on Slurm and on this machine, and as routed jobs on a Slurm without pilots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilotage.clock import boot_time_s
from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_server.core.identity import AGENT_NAMES, Role
from support.commands import PROGRAMS
from support.payload_paths import payload_lines
from support.server import running_server
from support.slurm import PARTITION, SlurmCluster, running_slurm

PULLED, HERE, PUSHED = "PULLED", "HERE", "PUSHED"
JOBS = 20
MAX_COPIES = 4
WAIT_TIMEOUT_S = 120.0
_SIZES = {"CPUs": 1, "Memory": 500, "MaxWallTime": 3600, "MaxTotalJobs": 3}
TREE = {
    "sites": {
        PULLED: {"CEType": "SLURM", "ces": {"open": {"queues": {PARTITION: _SIZES}}}},
        HERE: {"CEType": "local", "ces": {"machine": {"queues": {"default": _SIZES}}}},
        PUSHED: {"CEType": "SLURM-without-pilots", "ces": {"closed": {"queues": {PARTITION: _SIZES}}}},
    }
}
TABLE = f"""
[ name = "Closed cluster";
  Requirements = TARGET.WantJobRouter;
  MaxJobs = {MAX_COPIES};
  MaxIdleJobs = 2;
  set_Cluster = "closed";
]
"""


@dataclass
class Grid:
    """A server with a tree of three sites, and its agent processes."""

    folder: Path
    user: Client
    agents: dict[str, subprocess.Popen[bytes]]
    stack: ExitStack

    def start(self, agent: str) -> None:
        """Start an agent by its command."""
        command = [str(PROGRAMS / "pilotage-agents"), agent, "--config", str(self.folder / "agents.toml")]
        with (self.folder / f"{agent}.log").open("ab") as log:
            self.agents[agent] = self.stack.enter_context(subprocess.Popen(command, stderr=log))
        self.stack.callback(self.agents[agent].kill)

    def kill(self, agent: str) -> None:
        """Kill an agent without a clean shutdown."""
        self.agents[agent].send_signal(signal.SIGKILL)
        self.agents[agent].wait(WAIT_TIMEOUT_S)

    def end(self, agent: str) -> int:
        """Terminate an agent and return its exit code."""
        self.agents[agent].terminate()
        return self.agents[agent].wait(WAIT_TIMEOUT_S)

    def submit(self, count: int) -> list[int]:
        """Submit jobs that record their process id and run until the gate opens."""
        gate, runs = self.folder / "gate", self.folder / "runs"
        script = f"umask 0; echo $$ >> {runs}/%d; while ! [ -e {gate} ]; do sleep 0.1; done; echo job %d"
        descriptions = [
            JobDescription("/bin/sh", f"-c '{script % (n, n)}'", attributes={"WantJobRouter": True})
            for n in range(count)
        ]
        return list(self.user.submit(descriptions).job_ids)

    def runs(self, number: int) -> int:
        """Return how often a job was started."""
        path = self.folder / "runs" / str(number)
        return len(path.read_text().split()) if path.exists() else 0

    def running_at(self, ids: Sequence[int]) -> set[str]:
        return {job.site for job in self.user.jobs(ids) if job.state == "RUNNING"}

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail with the logs of the agents if it does not."""
        deadline_s = boot_time_s() + WAIT_TIMEOUT_S
        agent = self.agents["site-director"]
        while not condition():
            with suppress(subprocess.TimeoutExpired):
                agent.wait(0.1)
            if boot_time_s() > deadline_s:
                logs = [f"== {log.name}\n{log.read_text()[-4000:]}" for log in self.folder.glob("*.log")]
                pytest.fail("\n".join(["the condition did not become true", *logs]))


def _config(folder: Path, address: str, pulled: SlurmCluster, pushed: SlurmCluster) -> str:
    return f"""
server = "{address}"
token_file = "agent.token"
turn_s = 5
[site_director]
folder = "director"
interval_s = 0.5
urgent_interval_s = 0.5
when_stopped = "cancel"
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[site_director.pilot]
{payload_lines(folder, folder / "runs")}
cgroups = false
heartbeat_s = 1
max_idle_s = 1
grace_s = 1
[site_director.batch_systems.open]
type = "slurm"
command_prefix = {json.dumps(pulled.command_prefix)}
[site_director.batch_systems.machine]
type = "local"
[job_router]
folder = "router"
table = "routes.ads"
interval_s = 0.5
[job_router.targets.routes]
"Closed cluster" = {{ queue = "{PUSHED}/closed/{PARTITION}" }}
[job_router.batch_systems.closed]
type = "slurm"
ce_types = ["SLURM-without-pilots"]
command_prefix = {json.dumps(pushed.command_prefix)}
"""


@pytest.fixture
def clusters() -> Iterator[tuple[SlurmCluster, SlurmCluster]]:
    with running_slurm() as pulled, running_slurm() as pushed:
        yield pulled, pushed


@pytest.fixture
def grid(clusters: tuple[SlurmCluster, SlurmCluster], tmp_path: Path) -> Iterator[Grid]:
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path / "server", heartbeat_s=1))
        operator = stack.enter_context(Client(server.address, server.token(Role.OPERATOR, Role.ADMIN)))
        operator.put_tree(json.dumps(TREE), "json")
        (tmp_path / "runs").mkdir()
        (tmp_path / "routes.ads").write_text(TABLE)
        (tmp_path / "agent.token").write_text(server.token(*AGENT_NAMES, owner="agent:test"))
        (tmp_path / "agents.toml").write_text(_config(tmp_path, server.address, *clusters))
        user = stack.enter_context(Client(server.address, server.token()))
        yield Grid(tmp_path, user, {}, stack)


def test_pilots_and_routed_jobs_run_each_job_once(grid: Grid, clusters: tuple[SlurmCluster, SlurmCluster]) -> None:
    grid.start("site-director")
    grid.start("job-router")
    ids = grid.submit(JOBS)
    grid.until(lambda: grid.running_at(ids) == {PULLED, HERE, PUSHED})
    assert len(clusters[1].jobs()) <= MAX_COPIES

    grid.kill("job-router")
    os.close(os.open(grid.folder / "gate", os.O_CREAT))
    grid.start("job-router")
    grid.until(lambda: all(job.is_final for job in grid.user.jobs(ids)))

    jobs = grid.user.jobs(ids)
    assert [(job.state, job.exit_code) for job in jobs] == [("DONE", 0)] * JOBS
    assert {job.site for job in jobs} == {PULLED, HERE, PUSHED}
    assert [grid.runs(number) for number in range(JOBS)] == [1] * JOBS
    for number, job in enumerate(jobs):
        assert _stdout(grid, job) == f"job {number}\n"
    grid.until(lambda: not [*(grid.folder / "router" / "copies").iterdir()])
    assert grid.end("job-router") == 0
    assert grid.end("site-director") == 0


def _stdout(grid: Grid, job: JobStatus) -> str:
    (stdout,) = [file for file in grid.user.output_files(job.id) if file.name == "stdout"]
    return grid.user.read_output(job.id, stdout).decode()
