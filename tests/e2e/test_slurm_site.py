"""A real Slurm worked by a site director: jobs run, and no outage loses one or doubles a pilot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import pilot_service_pb2
from pilotage_client.api import Client
from pilotage_client.statuses import JobStatus
from pilotage_server.core.identity import Role
from support.command import PROGRAMS
from support.server import RunningServer, running_server
from support.slurm import NODES, PARTITION, SlurmCluster

TREE = {
    "sites": {
        "HERE": {
            "CEType": "SLURM",
            "ces": {"slurm1": {"queues": {PARTITION: {"CPUs": 1, "Memory": 500, "MaxWallTime": 3600}}}},
        }
    }
}
PATIENCE_S = 60.0


@dataclass
class Site:
    """A server, a user and an operator, and a cluster that a site director fills with pilots."""

    folder: Path
    server: RunningServer
    user: Client
    operator: Client
    slurm: SlurmCluster
    submitted_before: int

    def submit(self, count: int) -> list[int]:
        """Submit jobs that end when the gate opens, each writing its process id when it starts and when it ends."""
        waits = f"while ! [ -e {self.folder}/gate ]; do sleep 0.1; done"
        scripts = [
            f"echo $$ >> {self.folder}/started{n}; {waits}; echo $$ >> {self.folder}/ended{n}" for n in range(count)
        ]
        descriptions = [JobDescription("/bin/sh", f"-c '{script}'") for script in scripts]
        return list(self.user.submit(descriptions).job_ids)

    def open_gate(self) -> None:
        """Let the jobs end."""
        (self.folder / "gate").touch()

    def lines(self, name: str) -> list[str]:
        """Return what jobs have written to a file."""
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def jobs(self, ids: list[int]) -> list[JobStatus]:
        return self.user.jobs(ids)

    def all_run(self, ids: list[int], *, attempt: int = 1) -> None:
        """Return when all jobs run in this attempt or a later one."""
        self.until(lambda: all(job.state == "RUNNING" and job.attempt >= attempt for job in self.jobs(ids)))

    def all_done(self, ids: list[int]) -> None:
        """Return when all jobs have ended, as they must: well."""
        assert [(job.state, job.exit_code) for job in self.user.wait(ids, PATIENCE_S)] == [("DONE", 0)] * len(ids)

    def pilots(self) -> list[pilot_service_pb2.Pilot]:
        return self.operator.pilots(ended=True)

    def ended_pilots(self) -> list[str]:
        """Return why pilots have ended."""
        return [each.reason for each in self.pilots() if each.state == pilot_service_pb2.PILOT_STATE_ENDED]

    def submissions(self) -> int:
        """Return how many pilots Slurm has got from this site."""
        return self.slurm.submissions() - self.submitted_before

    def node_at_work(self) -> str:
        """Return the node of the one pilot that runs."""
        (node,) = [job["node"] for job in self.slurm.jobs() if job["state"] == "RUNNING"]
        return node

    def comes_back(self, node: str) -> None:
        """Start a node that was lost and return when it takes jobs."""
        self.slurm.start_node(node)
        self.until(lambda: node in self.slurm.nodes("idle", "alloc", "mix"))

    def heard(self, event: str) -> list[dict[str, Any]]:
        """Return what the director has logged of an event."""
        lines = (json.loads(line) for line in (self.folder / "director.log").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def until(self, happened: Callable[[], bool]) -> None:
        self.slurm.until(happened, self._story)

    def _story(self) -> str:
        log = (self.folder / "director.log").read_text()[-4000:]
        outputs = [path.read_text()[-2000:] for path in self.folder.glob("director/pilots/*/pilot.log")]
        return "\n".join([log, str(self.pilots()), *outputs])


def _configuration(server: RunningServer, slurm: SlurmCluster) -> str:
    return f"""
server = "{server.address}"
token_file = "agent.token"
turn_s = 10
[site_director]
folder = "director"
interval_s = 0.5
urgent_interval_s = 0.5
when_stopped = "cancel"
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[site_director.pilot]
cgroups = false
heartbeat_s = 1
max_idle_s = 1
grace_s = 1
[site_director.batch_systems.cluster]
type = "slurm"
command_prefix = {json.dumps(slurm.command_prefix)}
timeout_s = 3
kill_after_s = 10
"""


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path / "server", heartbeat_s=1))
        user = stack.enter_context(Client(server.address, server.token()))
        operator = stack.enter_context(Client(server.address, server.token(Role.OPERATOR, Role.ADMIN)))
        operator.put_tree(json.dumps(TREE), "json")
        (tmp_path / "agent.token").write_text(server.token(Role.AGENT, owner="agent:test"))
        (tmp_path / "agents.toml").write_text(_configuration(server, slurm))
        command = [str(PROGRAMS / "pilotage-agents"), "site-director", "--config", str(tmp_path / "agents.toml")]
        before = slurm.submissions()
        with (tmp_path / "director.log").open("wb") as log:
            director = stack.enter_context(subprocess.Popen(command, stderr=log))
        stack.callback(director.kill)
        yield Site(tmp_path, server, user, operator, slurm, before)
        director.terminate()
        assert director.wait(PATIENCE_S) == 0


def is_alive(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and " Z " not in stat.read_text()


def test_jobs_run_in_pilots_that_slurm_starts_and_pilots_without_work_end_well(site: Site) -> None:
    ids = site.submit(3)
    site.all_run(ids)
    site.open_gate()
    site.all_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 3)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    assert {(job.site, job.ce, job.queue) for job in site.jobs(ids)} == {("HERE", "slurm1", PARTITION)}


def test_a_job_whose_node_is_lost_with_its_pilot_runs_once_more_elsewhere(site: Site) -> None:
    ids = site.submit(1)
    site.all_run(ids)
    node = site.node_at_work()
    site.slurm.lose_node(node)
    (payload,) = site.lines("started0")
    os.kill(int(payload), signal.SIGKILL)
    site.all_run(ids, attempt=2)
    site.open_gate()
    site.all_done(ids)
    assert len(site.lines("ended0")) == 1
    assert any(reason.startswith("NODE_FAIL") for reason in site.ended_pilots())
    assert site.submissions() == 2
    site.comes_back(node)


def test_a_job_on_a_node_that_only_slurm_has_lost_goes_on_or_runs_elsewhere_and_never_both(site: Site) -> None:
    ids = site.submit(1)
    site.all_run(ids)
    node = site.node_at_work()
    site.slurm.kill_node(node)
    site.until(lambda: any(reason.startswith("NODE_FAIL") for reason in site.ended_pilots()))
    site.until(lambda: site.jobs(ids)[0].state == "RUNNING" and sum(map(is_alive, site.lines("started0"))) == 1)
    site.open_gate()
    site.all_done(ids)
    assert len(site.lines("ended0")) == 1
    assert site.submissions() == 2
    site.comes_back(node)


def test_a_controller_that_is_away_ends_no_pilot_and_doubles_none(site: Site) -> None:
    running = site.submit(1)
    site.all_run(running)
    site.slurm.stop_controller()
    waiting = site.submit(1)
    site.until(lambda: len(site.heard("batch system gives no answer")) >= 2)
    site.until(lambda: len(site.heard("pilots could not be sent")) >= 1)
    assert site.ended_pilots() == []
    site.slurm.start_controller()
    site.all_run(running + waiting)
    site.open_gate()
    site.all_done(running + waiting)
    assert [job.attempt for job in site.jobs(running + waiting)] == [1, 1]
    assert site.submissions() == 2


def test_drained_nodes_with_words_in_their_reason_only_make_pilots_wait(site: Site) -> None:
    nodes, reason = ",".join(NODES), "disk is bad, see ticket 7 = ask Olga"
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", f"Reason={reason}")
    ids = site.submit(2)
    site.until(lambda: any("DRAINED" in job["reason"] for job in site.slurm.jobs()))
    assert site.ended_pilots() == []
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
    site.open_gate()
    site.all_done(ids)
    assert site.submissions() == 2
    assert not site.heard("batch system gives no answer")


def test_jobs_whose_pilots_are_cancelled_behind_the_directors_back_run_in_new_ones(site: Site) -> None:
    ids = site.submit(2)
    site.all_run(ids)
    site.slurm.run("scancel", *[job["id"] for job in site.slurm.jobs() if job["state"] == "RUNNING"])
    site.all_run(ids, attempt=2)
    site.open_gate()
    site.all_done(ids)
    assert [len(site.lines(f"ended{n}")) for n in range(2)] == [1, 1]
    assert site.submissions() == 4
