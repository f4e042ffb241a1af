"""The Slurm batch system against fake commands that fail, a real cluster, and two federated clusters."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.hosts import LocalHost, SshHost
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from support.processes import is_running, until
from support.slurm import PARTITION, SlurmCluster, TwoClusters
from support.sshd import SshServer

NO_JOBS = """echo '{"jobs": [], "errors": []}'"""
HANGS = "sleep 1000 & echo $! > child; mv child hanging; wait"


class FakeCommands:
    """Shell scripts that replace Slurm's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\ncd {self.folder}\n{script}\n")
        path.chmod(0o755)

    def system(self, *, timeout_s: float = 30, cluster: str = "") -> SlurmBatchSystem:
        prefix = ("env", f"PATH={self.folder}:/usr/bin:/bin")
        return SlurmBatchSystem(
            "big",
            SlurmBatchSystemSettings(type="slurm", command_prefix=prefix, timeout_s=timeout_s, cluster=cluster),
            LocalHost(),
        )


@pytest.fixture
def commands(tmp_path: Path) -> FakeCommands:
    return FakeCommands(tmp_path)


def requests(folder: Path, count: int = 1, queue: str = "short") -> list[GlideinRequest]:
    return [GlideinRequest(f"stamp{n}", queue, ("true",), folder, Shape()) for n in range(count)]


async def status_of(system: SlurmBatchSystem) -> GlideinStatus:
    return (await system.poll_all(["71.stamp0"]))["71.stamp0"]


async def test_hanging_squeue_is_killed_with_its_children(commands: FakeCommands) -> None:
    commands.install("squeue", HANGS)
    status = await status_of(commands.system(timeout_s=5))
    assert status == GlideinStatus(GlideinState.UNKNOWN, "big: squeue: no answer within 5 s")
    child = int((commands.folder / "hanging").read_text())
    await until(lambda: not is_running(child))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no controller' >&2; exit 1", "big: squeue: no controller"),
        ("exit 3", "big: squeue: exit code 3, without any output"),
        ("echo '{\"jobs\": ['", "big: squeue: its answer cannot be read: it is no JSON"),
    ],
)
async def test_failed_squeue_leaves_glideins_unknown(commands: FakeCommands, script: str, reason: str) -> None:
    commands.install("squeue", script)
    status = await status_of(commands.system())
    assert status.state is GlideinState.UNKNOWN
    assert status.reason.startswith(reason)
    with pytest.raises(WorldError, match=reason):
        await commands.system().find_by_stamp(["stamp0"])


@pytest.mark.parametrize(
    ("scontrol", "state"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", GlideinState.ENDED),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", GlideinState.UNKNOWN),
        ("echo JobId=71 JobName=pilotage-stamp0", GlideinState.UNKNOWN),
        ("exit 0", GlideinState.UNKNOWN),
    ],
)
async def test_job_has_ended_only_if_the_controller_denies_it(
    commands: FakeCommands, scontrol: str, state: GlideinState
) -> None:
    commands.install("squeue", NO_JOBS)
    commands.install("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    commands.install("scontrol", scontrol)
    assert (await status_of(commands.system())).state is state


async def test_exit_code_of_ended_job_comes_from_accounting(commands: FakeCommands) -> None:
    commands.install("squeue", NO_JOBS)
    commands.install("sacct", "echo '71|FAILED|5:0|pilotage-stamp0'")
    assert (await status_of(commands.system())).exit_code == 5


async def test_reused_job_id_is_not_taken_for_the_glidein(commands: FakeCommands) -> None:
    commands.install(
        "squeue", """echo '{"jobs": [{"job_id": 71, "name": "pilotage-other", "job_state": "RUNNING"}]}'"""
    )
    commands.install("sacct", "echo '71|RUNNING|0:0|pilotage-other'")
    commands.install("scontrol", "echo JobId=71 JobName=pilotage-other")
    assert (await status_of(commands.system())).state is GlideinState.UNKNOWN


async def test_submission_stops_at_the_first_without_an_answer(commands: FakeCommands) -> None:
    commands.install("sbatch", "echo tried >> tries; echo 'Socket timed out on send/recv operation' >&2; exit 1")
    first, second, third = await commands.system().submit_many(requests(commands.folder, 3))
    assert first == Unanswered("big: Socket timed out on send/recv operation")
    assert second == third == NotSubmitted("as before: big: Socket timed out on send/recv operation", was_tried=False)
    assert (commands.folder / "tries").read_text() == "tried\n"


@pytest.mark.parametrize("end", ['kill -KILL "$$"', "exit 143", "exit 255"])
async def test_interrupted_submission_is_unanswered(commands: FakeCommands, end: str) -> None:
    commands.install("sbatch", end)
    (answer,) = await commands.system().submit_many(requests(commands.folder))
    assert isinstance(answer, Unanswered)


async def test_poll_stops_at_the_first_query_without_an_answer(commands: FakeCommands) -> None:
    commands.install("squeue", NO_JOBS)
    commands.install("sacct", "exit 1")
    commands.install("scontrol", "echo queried >> queried; kill -KILL $$")
    statuses = await commands.system().poll_all([f"{job}.stamp{job}" for job in range(5)])
    assert {status.state for status in statuses.values()} == {GlideinState.UNKNOWN}
    assert (commands.folder / "queried").read_text() == "queried\n"


async def test_each_poll_queries_the_next_100_missing_jobs(commands: FakeCommands) -> None:
    commands.install("squeue", NO_JOBS)
    commands.install("sacct", "exit 1")
    commands.install("scontrol", 'echo "$4" >> queried; echo "JobId=$4"')
    system, ids = commands.system(), [f"{job}.stamp{job}" for job in range(1000, 1150)]
    for queried in (100, 200, 300):
        statuses = await system.poll_all(ids)
        assert {status.state for status in statuses.values()} == {GlideinState.UNKNOWN}
        jobs = (commands.folder / "queried").read_text().split()
        assert len(jobs) == queried
    assert sorted(jobs) == sorted(2 * [str(job) for job in range(1000, 1150)])


async def test_every_command_names_the_cluster(commands: FakeCommands) -> None:
    for name, script in (("squeue", NO_JOBS), ("sacct", "true"), ("scontrol", "exit 1"), ("sbatch", "echo '71;far'")):
        commands.install(name, f'echo "$0 $*" >> queried\n{script}')
    system = commands.system(cluster="far")
    assert await system.submit_many(requests(commands.folder)) == (Submitted("71.stamp0"),)
    await system.poll_all(["71.stamp0"])
    queried = (commands.folder / "queried").read_text().splitlines()
    assert len(queried) == 4
    assert all(" --clusters=far " in line for line in queried)


async def test_job_sent_to_unconfigured_cluster_is_cancelled(commands: FakeCommands) -> None:
    commands.install("sbatch", "echo '71;far'")
    commands.install("scancel", 'echo "$*" > cancelled')
    (answer,) = await commands.system().submit_many(requests(commands.folder))
    reason = 'big: sbatch has sent it to the cluster far: set cluster = "far" to use that one'
    assert answer == NotSubmitted(reason)
    assert (commands.folder / "cancelled").read_text() == "--clusters=far 71\n"


async def test_user_id_is_queried_once(commands: FakeCommands) -> None:
    commands.install("id", "echo queried >> queried; echo 1001")
    commands.install(
        "squeue",
        """echo '{"jobs": [
        {"job_id": 71, "user_id": 1001, "name": "pilotage-stamp0", "job_state": "RUNNING"},
        {"job_id": 72, "user_id": 1002, "name": "pilotage-stamp1", "job_state": "RUNNING"}]}'""",
    )
    system = commands.system()
    for _ in range(2):
        assert await system.find_by_stamp(["stamp0", "stamp1"]) == {"stamp0": "71.stamp0"}
    assert (commands.folder / "queried").read_text() == "queried\n"


async def test_sbatch_inherits_no_token(commands: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    commands.install("sbatch", "env > environment; echo 71")
    assert await commands.system().submit_many(requests(commands.folder)) == (Submitted("71.stamp0"),)
    assert "secret" not in (commands.folder / "environment").read_text()


async def test_missing_slurm_is_named_in_the_rejection() -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=("/no/such/prefix",))
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many(requests(Path(os.sep)))
    assert answer == NotSubmitted("big: sbatch: /no/such/prefix: No such file or directory")


async def test_rejection_has_the_message_of_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many(requests(tmp_path, queue="shortt"))
    assert isinstance(answer, NotSubmitted)
    assert "invalid partition specified: shortt" in answer.reason


async def test_glidein_requests_its_shape_and_logs_in_its_folder(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    command = ("sh", "-c", 'echo $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE; pwd; echo "it\'s me" >&2')
    request = GlideinRequest("sized", PARTITION, command, tmp_path, Shape(cpus=2, memory_mib=300), 90)
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many([request])
    assert isinstance(answer, Submitted)
    job = answer.glidein_id.partition(".")[0]
    assert "TimeLimit=00:02:00" in slurm.run("scontrol", "show", "job", job)
    await until(lambda: (tmp_path / "pilot.log").exists() and "me" in (tmp_path / "pilot.log").read_text())
    assert (tmp_path / "pilot.log").read_text() == f"2 300\n{tmp_path}\nit's me\n"


async def test_submission_to_a_stopped_controller_surely_did_not_arrive(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    system = SlurmBatchSystem("big", settings, LocalHost())
    slurm.stop_controller()
    try:
        refused, untried = await system.submit_many([cluster_request(tmp_path, "true")] * 2)
    finally:
        slurm.start_controller()
    assert isinstance(refused, NotSubmitted)
    assert (refused.was_tried, "connect failure" in refused.reason) == (False, True)
    assert untried == NotSubmitted(f"as before: {refused.reason}", was_tried=False)


async def test_submission_over_broken_connection_is_found_by_stamp(
    slurm: SlurmCluster, sshd: SshServer, tmp_path: Path
) -> None:
    host = SshHost(sshd.settings())
    dies_after_submission = ("sh", "-c", '"$@" >&2; kill -KILL $PPID', "sh", *slurm.command_prefix)
    dying = SlurmBatchSystem("big", SlurmBatchSystemSettings(type="slurm", command_prefix=dies_after_submission), host)
    request = GlideinRequest("broken", PARTITION, ("sleep", "1000"), tmp_path, Shape())
    (answer,) = await dying.submit_many([request])
    assert isinstance(answer, Unanswered)
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    system = SlurmBatchSystem("big", settings, host)
    found = await system.find_by_stamp(["broken"])
    assert set(found) == {"broken"}
    await system.cancel_many(list(found.values()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit a job as another user")
async def test_job_of_another_user_with_our_stamp_is_not_found(slurm: SlurmCluster, tmp_path: Path) -> None:
    system = SlurmBatchSystem(
        "big", SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix), LocalHost()
    )
    forged = "sbatch --parsable --comment=pilotage:forged --chdir=/tmp --output=/dev/null --wrap 'sleep 1000'"
    job = slurm.run("su", "nobody", "-s", "/bin/sh", "-c", forged).strip()
    try:
        assert any(row["id"] == job for row in slurm.jobs())
        assert await system.find_by_stamp(["forged"]) == {}
    finally:
        slurm.run("scancel", job)


async def test_kills_glidein_that_ignores_termination(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix, kill_after_s=0)
    system = SlurmBatchSystem("big", settings, LocalHost())
    ignores_term = ("sh", "-c", "trap '' TERM; touch ready; while :; do sleep 0.1; done")
    (answer,) = await system.submit_many([GlideinRequest("ignores_term", PARTITION, ignores_term, tmp_path, Shape())])
    assert isinstance(answer, Submitted)
    await until((tmp_path / "ready").exists)
    await system.cancel_many([answer.glidein_id])
    assert (await end_of(system, answer.glidein_id)).reason.startswith("CANCELLED")


async def test_cancel_signals_the_pilot_but_not_its_payloads(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    system = SlurmBatchSystem("big", settings, LocalHost())
    child = "setsid sh -c \"trap 'echo signal > child' TERM; touch ready; while ! [ -e go ]; do sleep 0.1; done\" &"
    pilot = ("sh", "-c", f"{child} trap 'touch go; wait; exit 0' TERM; while :; do sleep 0.1; done")
    (answer,) = await system.submit_many([GlideinRequest("kind", PARTITION, pilot, tmp_path, Shape())])
    assert isinstance(answer, Submitted)
    await until((tmp_path / "ready").exists)
    await system.cancel_many([answer.glidein_id])
    assert (await end_of(system, answer.glidein_id)).exit_code == 0
    assert not (tmp_path / "child").exists()


async def end_of(system: SlurmBatchSystem, glidein_id: str) -> GlideinStatus:
    async with asyncio.timeout(30):
        while True:
            status = (await system.poll_all([glidein_id]))[glidein_id]
            if status.state is GlideinState.ENDED:
                return status
            await asyncio.sleep(0)


def cluster_system(clusters: TwoClusters, cluster: str = "far", **variables: str) -> SlurmBatchSystem:
    """Return the batch system of one cluster, run by the commands of the other."""
    prefix = (*clusters.near.command_prefix, *(f"{name}={value}" for name, value in variables.items()))
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=prefix, cluster=cluster, timeout_s=10)
    return SlurmBatchSystem("lyon", settings, LocalHost())


def cluster_request(folder: Path, *command: str) -> GlideinRequest:
    return GlideinRequest("stamp", PARTITION, command, folder, Shape(cpus=1))


def job_states(cluster: SlurmCluster) -> dict[str, str]:
    return {job["name"]: job["state"] for job in cluster.jobs()}


async def submitted(system: SlurmBatchSystem, request: GlideinRequest) -> str:
    (answer,) = await system.submit_many([request])
    assert isinstance(answer, Submitted)
    return answer.glidein_id


async def test_glidein_runs_on_the_named_cluster(slurm_clusters: TwoClusters, tmp_path: Path) -> None:
    system = cluster_system(slurm_clusters)
    glidein = await submitted(system, cluster_request(tmp_path, "sleep", "1000"))
    slurm_clusters.far.until(lambda: job_states(slurm_clusters.far) == {"pilotage-stamp": "RUNNING"})
    assert job_states(slurm_clusters.near) == {}
    assert (await system.poll_all([glidein]))[glidein].state is GlideinState.RUNNING
    await system.cancel_many([glidein])
    slurm_clusters.far.until(lambda: "RUNNING" not in job_states(slurm_clusters.far).values())


async def test_accounting_of_other_cluster_has_the_exit_code(slurm_clusters: TwoClusters, tmp_path: Path) -> None:
    system = cluster_system(slurm_clusters)
    glidein = await submitted(system, cluster_request(tmp_path, "sh", "-c", "exit 3"))
    number = glidein.partition(".")[0]
    slurm_clusters.far.until(lambda: f"{number}|FAILED" in accounted_jobs(slurm_clusters.far))
    slurm_clusters.far.until(lambda: job_states(slurm_clusters.far) == {})  # Slurm removes it after MinJobAge
    status = (await system.poll_all([glidein]))[glidein]
    assert (status.state, status.exit_code) == (GlideinState.ENDED, 3)


def accounted_jobs(cluster: SlurmCluster) -> list[str]:
    return cluster.run("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State").split()


async def test_glidein_sent_to_unconfigured_cluster_is_cancelled_there(
    slurm_clusters: TwoClusters, tmp_path: Path
) -> None:
    system = cluster_system(slurm_clusters, "", SBATCH_CLUSTERS="far")
    (answer,) = await system.submit_many([cluster_request(tmp_path, "sleep", "1000")])
    assert answer == NotSubmitted('lyon: sbatch has sent it to the cluster far: set cluster = "far" to use that one')
    slurm_clusters.far.until(lambda: set(job_states(slurm_clusters.far).values()) <= {"CANCELLED", "FAILED"})


async def test_glideins_of_unreachable_cluster_are_unknown(slurm_clusters: TwoClusters, tmp_path: Path) -> None:
    system = cluster_system(slurm_clusters)
    glidein = await submitted(system, cluster_request(tmp_path, "sleep", "1000"))
    slurm_clusters.far.stop_controller()
    try:
        assert (await system.poll_all([glidein]))[glidein].state is GlideinState.UNKNOWN
    finally:
        slurm_clusters.far.start_controller()
    await wait_until_known(system, glidein)
    await system.cancel_many([glidein])


async def wait_until_known(system: SlurmBatchSystem, glidein: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await system.poll_all([glidein]))[glidein].state.is_known:
                return
