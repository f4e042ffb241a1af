"""A site director with a real Slurm, directly and over ssh: outages lose no job and duplicate no pilot."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from support.processes import is_running
from support.slurm import NODES, PARTITION, SlurmCluster
from support.slurm_site import Site, over_ssh, running_site
from support.sshd import SshServer

SHORT_LEASE = timedelta(seconds=30)
"""The least that a server grants unless it is set otherwise."""


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    with running_site(slurm, tmp_path) as started:
        yield started


def test_jobs_run_in_pilots_which_end_when_idle(site: Site) -> None:
    ids = site.submit(3)
    site.wait_until_running(ids)
    site.open_gate()
    site.wait_until_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 3)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    assert {(job.site, job.ce, job.queue) for job in site.jobs(ids)} == {("HERE", "slurm1", PARTITION)}


def test_job_on_a_lost_node_runs_again_elsewhere(site: Site) -> None:
    ids = site.submit(1, SHORT_LEASE)
    site.wait_until_running(ids)
    node = site.busy_node()
    site.slurm.lose_node(node)
    (payload,) = site.lines("started0")
    with suppress(ProcessLookupError):  # the watchdog was faster
        os.kill(int(payload), signal.SIGKILL)
    site.wait_until_running(ids, attempt=2)
    site.open_gate()
    site.wait_until_done(ids)
    assert len(site.lines("ended0")) == 1
    assert any(line["reason"].startswith("NODE_FAIL") for line in site.log_lines("glidein ended"))
    assert site.submissions() == 2
    site.restart_node(node)


def test_job_on_a_node_unreachable_for_slurm_runs_on(site: Site) -> None:
    ids = site.submit(1)
    site.wait_until_running(ids)
    node = site.busy_node()
    site.slurm.kill_node(node)
    site.until(lambda: any(line["reason"].startswith("NODE_FAIL") for line in site.log_lines("glidein ended")))
    assert [is_running(pid) for pid in site.lines("started0")] == [True]
    site.open_gate()
    site.wait_until_done(ids)
    assert site.jobs(ids)[0].attempt == 1
    assert len(site.lines("started0")) == len(site.lines("ended0")) == 1
    site.restart_node(node)


def test_controller_outage_ends_and_duplicates_no_pilot(site: Site) -> None:
    running = site.submit(1)
    site.wait_until_running(running)
    site.slurm.stop_controller()
    waiting = site.submit(1)
    site.until(lambda: len(site.log_lines("batch system gives no answer")) >= 2)
    site.until(lambda: len(site.log_lines("pilots could not be sent")) >= 1)
    refused = site.ended_pilots()
    assert all("connect failure" in reason for reason in refused), refused
    site.slurm.start_controller()
    site.wait_until_running(running + waiting)
    site.open_gate()
    site.wait_until_done(running + waiting)
    assert [job.attempt for job in site.jobs(running + waiting)] == [1, 1]
    assert site.submissions() == 2


def test_pilots_wait_while_nodes_are_drained(site: Site) -> None:
    nodes, reason = ",".join(NODES), "disk is bad, see ticket 7 = ask Olga"
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", f"Reason={reason}")
    ids = site.submit(2)
    site.until(lambda: any("DRAINED" in job["reason"] for job in site.slurm.jobs()))
    assert site.ended_pilots() == []
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
    site.open_gate()
    site.wait_until_done(ids)
    assert site.submissions() == 2
    assert not site.log_lines("batch system gives no answer")


def test_jobs_of_cancelled_pilots_run_in_new_pilots(site: Site) -> None:
    ids = site.submit(2)
    site.wait_until_running(ids)
    site.slurm.run("scancel", *[job["id"] for job in site.slurm.jobs() if job["state"] == "RUNNING"])
    site.wait_until_running(ids, attempt=2)
    site.open_gate()
    site.wait_until_done(ids)
    assert [len(site.lines(f"ended{n}")) for n in range(2)] == [1, 1]
    assert site.submissions() == 4


@pytest.fixture
def remote_folder(tmp_path: Path) -> Path:
    """Return the folder on the cluster's host."""
    return tmp_path / "remote folder"


@pytest.fixture
def ssh_site(slurm: SlurmCluster, sshd: SshServer, tmp_path: Path, remote_folder: Path) -> Iterator[Site]:
    with running_site(slurm, tmp_path, over_ssh(sshd.settings(folder=str(remote_folder)))) as started:
        yield started


def test_pilot_files_and_output_are_transferred_over_ssh(ssh_site: Site, remote_folder: Path) -> None:
    ids = ssh_site.submit(2)
    ssh_site.wait_until_running(ids)
    uploaded = list(remote_folder.glob("glideins/*"))
    assert sorted(folder.name for folder in uploaded) == sorted(pilot.stamp for pilot in ssh_site.pilots())
    ssh_site.open_gate()
    ssh_site.wait_until_done(ids)
    ssh_site.until(lambda: len(ssh_site.ended_pilots()) == ssh_site.submissions() == 2)
    assert set(ssh_site.ended_pilots()) == {"it had no job for 1 s"}
    ssh_site.until(lambda: not list(remote_folder.glob("glideins/*")))
    logs = [ssh_site.folder / "director" / "pilots" / folder.name / "pilot.log" for folder in uploaded]
    assert all("pilot starts" in log.read_text() for log in logs)


def test_ssh_outage_ends_and_duplicates_no_pilot(ssh_site: Site, sshd: SshServer) -> None:
    running = ssh_site.submit(1)
    ssh_site.wait_until_running(running)
    sshd.stop()
    try:
        waiting = ssh_site.submit(1)
        ssh_site.until(lambda: len(ssh_site.log_lines("batch system gives no answer")) >= 2)
        ssh_site.until(lambda: len(ssh_site.log_lines("pilots could not be sent")) >= 1)
        assert any(
            "Connection refused" in line["reason"] for line in ssh_site.log_lines("batch system gives no answer")
        )
        assert ssh_site.slurm.jobs()[-1]["state"] == "RUNNING"
    finally:
        sshd.start()
    ssh_site.wait_until_running(running + waiting)
    ssh_site.open_gate()
    ssh_site.wait_until_done(running + waiting)
    assert [job.attempt for job in ssh_site.jobs(running + waiting)] == [1, 1]
    assert ssh_site.submissions() == 2
