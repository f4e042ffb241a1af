"""Glideins on one of two real clusters of Slurm with one accounting, asked by the commands of the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, NotSubmitted, Submitted
from pilotage_agents.batch_systems.hosts import LocalHost
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from support.slurm import PARTITION, SlurmCluster, TwoClusters


def a_system(clusters: TwoClusters, cluster: str = "far", **variables: str) -> SlurmBatchSystem:
    prefix = (*clusters.near.command_prefix, *(f"{name}={value}" for name, value in variables.items()))
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=prefix, cluster=cluster, timeout_s=10)
    return SlurmBatchSystem("lyon", settings, LocalHost())


def a_request(folder: Path, *command: str) -> GlideinRequest:
    return GlideinRequest("stamp", PARTITION, command, folder, Shape(cpus=1))


def states(cluster: SlurmCluster) -> dict[str, str]:
    return {job["name"]: job["state"] for job in cluster.jobs()}


async def submitted(system: SlurmBatchSystem, request: GlideinRequest) -> str:
    (answer,) = await system.submit_many([request])
    assert isinstance(answer, Submitted)
    return answer.glidein_id


async def test_a_glidein_goes_to_the_cluster_that_is_named_and_ends_there(
    slurm_clusters: TwoClusters, tmp_path: Path
) -> None:
    system = a_system(slurm_clusters)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    slurm_clusters.far.until(lambda: states(slurm_clusters.far) == {"pilotage-stamp": "RUNNING"})
    assert states(slurm_clusters.near) == {}
    assert (await system.poll_all([glidein]))[glidein].state is GlideinState.RUNNING
    await system.cancel_many([glidein])
    slurm_clusters.far.until(lambda: "RUNNING" not in states(slurm_clusters.far).values())


async def test_of_a_glidein_that_has_left_the_queue_the_accounting_says_how_it_ended(
    slurm_clusters: TwoClusters, tmp_path: Path
) -> None:
    system = a_system(slurm_clusters)
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", "exit 3"))
    number = glidein.partition(".")[0]
    slurm_clusters.far.until(lambda: f"{number}|FAILED" in accounts(slurm_clusters.far))
    slurm_clusters.far.until(lambda: states(slurm_clusters.far) == {})  # it is forgotten after MinJobAge
    status = (await system.poll_all([glidein]))[glidein]
    assert (status.state, status.exit_code) == (GlideinState.ENDED, 3)


def accounts(cluster: SlurmCluster) -> list[str]:
    return cluster.run("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State").split()


async def test_a_glidein_that_went_to_a_cluster_which_nobody_would_ask_is_called_back(
    slurm_clusters: TwoClusters, tmp_path: Path
) -> None:
    system = a_system(slurm_clusters, "", SBATCH_CLUSTERS="far")
    (answer,) = await system.submit_many([a_request(tmp_path, "sleep", "1000")])
    assert answer == NotSubmitted('lyon: sbatch has sent it to the cluster far: set cluster = "far" to use that one')
    slurm_clusters.far.until(lambda: set(states(slurm_clusters.far).values()) <= {"CANCELLED", "FAILED"})


async def test_while_the_cluster_is_away_its_glideins_are_unknown(slurm_clusters: TwoClusters, tmp_path: Path) -> None:
    system = a_system(slurm_clusters)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    slurm_clusters.far.stop_controller()
    try:
        assert (await system.poll_all([glidein]))[glidein].state is GlideinState.UNKNOWN
    finally:
        slurm_clusters.far.start_controller()
    await until_known(system, glidein)
    await system.cancel_many([glidein])


async def until_known(system: SlurmBatchSystem, glidein: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await system.poll_all([glidein]))[glidein].state.is_known:
                return
