"""Routed jobs on a real Slurm: their ends, lost nodes, cancellation and controller outages."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.hosts import LocalHost
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.targets.job_folders import RoutedJobFolders
from pilotage_agents.router.targets.queue import BatchQueueTarget
from support.routed_job_targets import InMemoryFiles, a_copy, end_of, submitted, texts_of, wait_for_status
from support.slurm import PARTITION, SlurmCluster

NAME = "pilotage-7-3"


@dataclass
class SlurmTarget:
    """A target over a queue of a real Slurm, with its routed jobs."""

    cluster: SlurmCluster
    folder: Path
    target: BatchQueueTarget
    files: InMemoryFiles
    references: list[str]

    async def submit(self, *command: str, **fields: Any) -> str:
        """Submit a routed job and return its reference."""
        name = f"{NAME}{len(self.references)}"
        (reference,) = await submitted(self.target, self.files, a_copy(name, *command, **fields))
        self.references.append(reference)
        return reference

    def slurm_id(self, reference: str) -> str:
        return reference.split(" ")[1].split(".")[0]


@pytest.fixture
async def slurm_target(tmp_path: Path, slurm: SlurmCluster) -> AsyncIterator[SlurmTarget]:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix, timeout_s=30)
    system = SlurmBatchSystem("slurm", settings, LocalHost())
    queue = QueueId("SITE", "slurm1", PARTITION)
    target = BatchQueueTarget(queue, system, RoutedJobFolders(tmp_path, OutputLimits(1 << 20)), "here")
    submitter = SlurmTarget(slurm, tmp_path, target, InMemoryFiles(), [])
    yield submitter
    await submitter.target.cancel(submitter.references)


async def test_routed_job_gets_its_cores_and_returns_output(slurm_target: SlurmTarget) -> None:
    script = slurm_target.files.add("run.sh", "nproc > cores; cat data; exit 3", executable=True)
    data = slurm_target.files.add("data", "the input")
    reference = await slurm_target.submit(
        "run.sh", input_files=(script, data), output_files=("cores",), request_cpus=2, wall_time=timedelta(minutes=5)
    )
    status = await end_of(slurm_target.target, reference)
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 3)
    texts = await texts_of(slurm_target.target, reference)
    assert texts["stdout"] == "the input"
    assert texts.keys() == {"stdout", "stderr", "cores"}


async def test_routed_job_on_a_lost_node_is_gone(slurm_target: SlurmTarget) -> None:
    script = slurm_target.files.add("run.sh", "echo $$ > pid\nexec sleep 1000", executable=True)
    reference = await slurm_target.submit("run.sh", input_files=(script,))
    await wait_for_status(slurm_target.target, reference, (RoutedJobState.RUNNING,))
    pid = slurm_target.folder / f"{NAME}0-here" / "work" / "pid"
    slurm_target.cluster.until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    (node,) = [job["node"] for job in slurm_target.cluster.jobs() if job["id"] == slurm_target.slurm_id(reference)]
    slurm_target.cluster.lose_node(node)
    try:
        status = await end_of(slurm_target.target, reference)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        slurm_target.cluster.start_node(node)
        slurm_target.cluster.until(lambda: node in slurm_target.cluster.nodes("idle", "alloc", "mix"))
    assert status.state is RoutedJobState.GONE
    assert "NODE_FAIL" in status.reason


async def test_cancelled_routed_job_is_gone(slurm_target: SlurmTarget) -> None:
    reference = await slurm_target.submit("/bin/sleep", "1000")
    await wait_for_status(slurm_target.target, reference, (RoutedJobState.RUNNING,))
    slurm_target.cluster.run("scancel", slurm_target.slurm_id(reference))
    status = await end_of(slurm_target.target, reference)
    assert status.state is RoutedJobState.GONE
    assert "CANCELLED" in status.reason


async def test_job_that_signals_its_process_group_has_completed(slurm_target: SlurmTarget) -> None:
    script = slurm_target.files.add("run.sh", "trap : TERM; kill -TERM 0; exit 6", executable=True)
    status = await end_of(slurm_target.target, await slurm_target.submit("run.sh", input_files=(script,)))
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 6)


async def test_routed_jobs_are_unknown_while_the_controller_is_down(slurm_target: SlurmTarget) -> None:
    reference = await slurm_target.submit("/bin/sleep", "1000")
    await wait_for_status(slurm_target.target, reference, (RoutedJobState.RUNNING,))
    slurm_target.cluster.stop_controller()
    try:
        status = (await slurm_target.target.poll([reference]))[reference]
        found = await slurm_target.target.find_again([NAME + "0"])
    finally:
        slurm_target.cluster.start_controller()
    assert status.state is RoutedJobState.UNKNOWN
    assert found == {NAME + "0": reference}, "its reference is stored in its folder"
    await wait_for_status(slurm_target.target, reference, (RoutedJobState.RUNNING,))
