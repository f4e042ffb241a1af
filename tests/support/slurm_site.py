"""A site with a real Slurm, a server, and a site director that submits pilots to the cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pilotage.job_description import JobDescription
from pilotage_agents.batch_systems.settings import SshSettings
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_client.models.grid import PilotStatus
from pilotage_server.core.identity import AGENT_NAMES, Role
from support.commands import PROGRAMS
from support.payload_paths import payload_lines
from support.server import RunningServer, running_server
from support.slurm import PARTITION, SlurmCluster

TREE = {
    "sites": {
        "HERE": {
            "CEType": "SLURM",
            "ces": {"slurm1": {"queues": {PARTITION: {"CPUs": 1, "Memory": 500, "MaxWallTime": 3600}}}},
        }
    }
}
WAIT_TIMEOUT_S = 60.0


@dataclass
class Site:
    """A server with a user and an operator, and a cluster that a site director submits pilots to."""

    folder: Path
    server: RunningServer
    user: Client
    operator: Client
    slurm: SlurmCluster
    submitted_before: int

    def submit(self, count: int, lease: timedelta | None = None) -> list[int]:
        """Submit jobs that run until `open_gate`; each writes its process id at its start and its end.

        Jobs may run as different users, and write to the same files.
        """
        waits = f"while ! [ -e {self.folder}/gate ]; do sleep 0.1; done"
        scripts = [
            f"umask 0; echo $$ >> {self.folder}/started{n}; {waits}; echo $$ >> {self.folder}/ended{n}"
            for n in range(count)
        ]
        descriptions = [JobDescription("/bin/sh", f"-c '{script}'", lease=lease) for script in scripts]
        return list(self.user.submit(descriptions).job_ids)

    def open_gate(self) -> None:
        """End the jobs."""
        (self.folder / "gate").touch()

    def lines(self, name: str) -> list[str]:
        """Return the words in a file that jobs have written."""
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def jobs(self, ids: list[int]) -> list[JobStatus]:
        return self.user.jobs(ids)

    def wait_until_running(self, ids: list[int], *, attempt: int = 1) -> None:
        """Wait until all jobs run in this attempt or a later one."""
        self.until(lambda: all(job.state == "RUNNING" and job.attempt >= attempt for job in self.jobs(ids)))

    def wait_until_done(self, ids: list[int]) -> None:
        """Wait until all jobs have ended; each must be DONE with exit code 0."""
        assert [(job.state, job.exit_code) for job in self.user.wait(ids, WAIT_TIMEOUT_S)] == [("DONE", 0)] * len(ids)

    def pilots(self) -> list[PilotStatus]:
        return self.operator.pilots(ended=True)

    def ended_pilots(self) -> list[str]:
        """Return the reasons of the ended pilots."""
        return [each.reason for each in self.pilots() if each.state == "ENDED"]

    def submissions(self) -> int:
        """Return the number of glideins that this site has submitted."""
        return self.slurm.submissions() - self.submitted_before

    def busy_node(self) -> str:
        """Return the node of the only running glidein."""
        (node,) = [job["node"] for job in self.slurm.jobs() if job["state"] == "RUNNING"]
        return node

    def restart_node(self, node: str) -> None:
        """Start a lost node and wait until it accepts jobs."""
        self.slurm.start_node(node)
        self.until(lambda: node in self.slurm.nodes("idle", "alloc", "mix"))

    def log_lines(self, event: str) -> list[dict[str, Any]]:
        """Return the director's log lines of an event."""
        text = (self.folder / "director.log").read_text()
        lines = (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))
        return [line for line in lines if line["event"] == event]

    def until(self, happened: Callable[[], bool]) -> None:
        self.slurm.until(happened, self._story)

    def _story(self) -> str:
        log = (self.folder / "director.log").read_text()[-4000:]
        logs = [*self.folder.glob("director/pilots/*/pilot.log"), *self.folder.glob("scratch/*.log")]
        outputs = [path.read_text()[-2000:] for path in logs]
        return "\n".join([log, str(self.pilots()), *outputs])


def _configuration(server: RunningServer, slurm: SlurmCluster, folder: Path, more: str) -> str:
    return f"""
server = "{server.address}"
token_file = "agent.token"
turn_s = 10
[site_director]
folder = "director"
interval_s = 0.5
urgent_interval_s = 0.5
when_stopped = "cancel"
lost_after_s = 10
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[site_director.pilot]
{payload_lines(folder)}
cgroups = false
heartbeat_s = 1
max_idle_s = 1
grace_s = 1
[site_director.batch_systems.cluster]
type = "slurm"
command_prefix = {json.dumps(slurm.command_prefix)}
timeout_s = 30
kill_after_s = 10
{more}
"""


def over_ssh(settings: SshSettings) -> str:
    """Return the section of the director's settings for SSH."""
    values = settings.model_dump(exclude_none=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["[site_director.batch_systems.cluster.ssh]", *lines])


@contextmanager
def running_site(slurm: SlurmCluster, folder: Path, more: str = "") -> Iterator[Site]:
    """Run a site in a folder; `more` is added to the director's settings of the cluster."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server(folder / "server", heartbeat_s=1))
        user = stack.enter_context(Client(server.address, server.token()))
        operator = stack.enter_context(Client(server.address, server.token(Role.OPERATOR, Role.ADMIN)))
        operator.put_tree(json.dumps(TREE), "json")
        (folder / "agent.token").write_text(server.token(*AGENT_NAMES, owner="agent:test"))
        (folder / "agents.toml").write_text(_configuration(server, slurm, folder, more))
        command = [str(PROGRAMS / "pilotage-agents"), "site-director", "--config", str(folder / "agents.toml")]
        before = slurm.submissions()
        with (folder / "director.log").open("wb") as log:
            director = stack.enter_context(subprocess.Popen(command, stderr=log))
        stack.callback(director.kill)
        yield Site(folder, server, user, operator, slurm, before)
        director.terminate()
        assert director.wait(WAIT_TIMEOUT_S) == 0
