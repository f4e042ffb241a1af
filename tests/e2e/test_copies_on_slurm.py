"""Copies of jobs on a real Slurm, and what happens to them behind the router's back."""

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
from pilotage_agents.router.places.job_folders import RoutedJobFolders
from pilotage_agents.router.places.queue import BatchQueueTarget
from support.copy_targets import HeldFiles, a_copy, end_of, status_when, submitted, texts_of
from support.slurm import PARTITION, SlurmCluster

NAME = "pilotage-7-3"


@dataclass
class Pushed:
    """A router's way to a queue of a real Slurm, of a folder of its own."""

    cluster: SlurmCluster
    folder: Path
    target: BatchQueueTarget
    files: HeldFiles
    references: list[str]

    async def push(self, *command: str, **described: Any) -> str:
        """Push a copy; returns its reference."""
        name = f"{NAME}{len(self.references)}"
        (reference,) = await submitted(self.target, self.files, a_copy(name, *command, **described))
        self.references.append(reference)
        return reference

    def slurm_id(self, reference: str) -> str:
        return reference.split(" ")[1].split(".")[0]


@pytest.fixture
async def pushed(tmp_path: Path, slurm: SlurmCluster) -> AsyncIterator[Pushed]:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix, timeout_s=30)
    system = SlurmBatchSystem("slurm", settings, LocalHost())
    queue = QueueId("SITE", "slurm1", PARTITION)
    target = BatchQueueTarget(queue, system, RoutedJobFolders(tmp_path, OutputLimits(1 << 20)), "here")
    found = Pushed(slurm, tmp_path, target, HeldFiles(), [])
    yield found
    await found.target.cancel(found.references)


async def test_a_copy_gets_the_cores_that_its_job_asks_for_and_brings_its_output_back(pushed: Pushed) -> None:
    script = pushed.files.add("run.sh", "nproc > cores; cat data; exit 3", executable=True)
    data = pushed.files.add("data", "the input")
    reference = await pushed.push(
        "run.sh", input_files=(script, data), output_files=("cores",), request_cpus=2, wall_time=timedelta(minutes=5)
    )
    status = await end_of(pushed.target, reference)
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 3)
    texts = await texts_of(pushed.target, reference)
    assert texts["stdout"] == "the input"
    assert texts.keys() == {"stdout", "stderr", "cores"}


async def test_a_copy_whose_node_was_lost_is_gone(pushed: Pushed) -> None:
    script = pushed.files.add("run.sh", "echo $$ > pid\nexec sleep 1000", executable=True)
    reference = await pushed.push("run.sh", input_files=(script,))
    await status_when(pushed.target, reference, (RoutedJobState.RUNNING,))
    pid = pushed.folder / f"{NAME}0-here" / "work" / "pid"
    pushed.cluster.until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    (node,) = [job["node"] for job in pushed.cluster.jobs() if job["id"] == pushed.slurm_id(reference)]
    pushed.cluster.lose_node(node)
    try:
        status = await end_of(pushed.target, reference)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        pushed.cluster.start_node(node)
        pushed.cluster.until(lambda: node in pushed.cluster.nodes("idle", "alloc", "mix"))
    assert status.state is RoutedJobState.GONE
    assert "NODE_FAIL" in status.reason


async def test_a_copy_that_somebody_cancelled_is_gone(pushed: Pushed) -> None:
    reference = await pushed.push("/bin/sleep", "1000")
    await status_when(pushed.target, reference, (RoutedJobState.RUNNING,))
    pushed.cluster.run("scancel", pushed.slurm_id(reference))
    status = await end_of(pushed.target, reference)
    assert status.state is RoutedJobState.GONE
    assert "CANCELLED" in status.reason


async def test_a_job_that_signals_all_of_its_kind_has_ended_by_itself(pushed: Pushed) -> None:
    script = pushed.files.add("run.sh", "trap : TERM; kill -TERM 0; exit 6", executable=True)
    status = await end_of(pushed.target, await pushed.push("run.sh", input_files=(script,)))
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 6)


async def test_a_controller_that_is_away_makes_no_copy_gone(pushed: Pushed) -> None:
    reference = await pushed.push("/bin/sleep", "1000")
    await status_when(pushed.target, reference, (RoutedJobState.RUNNING,))
    pushed.cluster.stop_controller()
    try:
        status = (await pushed.target.poll([reference]))[reference]
        lost = await pushed.target.find_again([NAME + "0"])
    finally:
        pushed.cluster.start_controller()
    assert status.state is RoutedJobState.UNKNOWN
    assert lost == {NAME + "0": reference}, "which is kept in its folder"
    await status_when(pushed.target, reference, (RoutedJobState.RUNNING,))
