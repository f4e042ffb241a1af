"""Slurm's commands as they fail: hanging, not there, answering with what nobody can read."""

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
from support.slurm import PARTITION, SlurmCluster
from support.sshd import SshServer

NO_JOBS = """echo '{"jobs": [], "errors": []}'"""
HANGS = "sleep 1000 & echo $! > child; mv child hanging; wait"


class Programs:
    """Programs that take the place of Slurm's, each a shell script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, script: str) -> None:
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
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def requests(folder: Path, count: int = 1, queue: str = "short") -> list[GlideinRequest]:
    return [GlideinRequest(f"stamp{n}", queue, ("true",), folder, Shape()) for n in range(count)]


async def status_of(system: SlurmBatchSystem) -> GlideinStatus:
    return (await system.poll_all(["71.stamp0"]))["71.stamp0"]


async def test_a_squeue_that_hangs_is_ended_with_its_children_and_says_nothing(programs: Programs) -> None:
    programs.put("squeue", HANGS)
    status = await status_of(programs.system(timeout_s=5))
    assert status == GlideinStatus(GlideinState.UNKNOWN, "big: squeue: no answer within 5 s")
    child = int((programs.folder / "hanging").read_text())
    await until(lambda: not is_running(child))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'no controller' >&2; exit 1", "big: squeue: no controller"),
        ("exit 3", "big: squeue: exit code 3, without any output"),
        ("echo '{\"jobs\": ['", "big: squeue: its answer cannot be read: it is no JSON"),
    ],
)
async def test_an_answer_that_cannot_be_used_leaves_every_pilot_as_it_was(
    programs: Programs, script: str, why: str
) -> None:
    programs.put("squeue", script)
    status = await status_of(programs.system())
    assert status.state is GlideinState.UNKNOWN
    assert status.reason.startswith(why)
    with pytest.raises(WorldError, match=why):
        await programs.system().find_by_stamp(["stamp0"])


@pytest.mark.parametrize(
    ("scontrol", "state"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", GlideinState.ENDED),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", GlideinState.UNKNOWN),
        ("echo JobId=71 JobName=pilotage-stamp0", GlideinState.UNKNOWN),
        ("exit 0", GlideinState.UNKNOWN),
    ],
)
async def test_a_job_that_is_not_in_the_queue_has_ended_only_when_the_controller_knows_no_such_job(
    programs: Programs, scontrol: str, state: GlideinState
) -> None:
    programs.put("squeue", NO_JOBS)
    programs.put("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    programs.put("scontrol", scontrol)
    assert (await status_of(programs.system())).state is state


async def test_the_accounting_tells_how_a_job_ended_that_is_not_in_the_queue(programs: Programs) -> None:
    programs.put("squeue", NO_JOBS)
    programs.put("sacct", "echo '71|FAILED|5:0|pilotage-stamp0'")
    assert (await status_of(programs.system())).exit_code == 5


async def test_a_job_id_that_was_given_out_again_is_not_taken_for_the_pilot(programs: Programs) -> None:
    programs.put("squeue", """echo '{"jobs": [{"job_id": 71, "name": "pilotage-other", "job_state": "RUNNING"}]}'""")
    programs.put("sacct", "echo '71|RUNNING|0:0|pilotage-other'")
    programs.put("scontrol", "echo JobId=71 JobName=pilotage-other")
    assert (await status_of(programs.system())).state is GlideinState.UNKNOWN


async def test_after_a_submission_without_an_answer_no_other_is_tried(programs: Programs) -> None:
    programs.put("sbatch", "echo tried >> tries; echo 'Socket timed out on send/recv operation' >&2; exit 1")
    first, second, third = await programs.system().submit_many(requests(programs.folder, 3))
    assert first == Unanswered("big: Socket timed out on send/recv operation")
    assert second == third == NotSubmitted("as before: big: Socket timed out on send/recv operation", was_tried=False)
    assert (programs.folder / "tries").read_text() == "tried\n"


@pytest.mark.parametrize("end", ['kill -KILL "$$"', "exit 143", "exit 255"])
async def test_a_submission_that_a_signal_or_ssh_has_cut_short_is_no_refusal(programs: Programs, end: str) -> None:
    programs.put("sbatch", end)
    (answer,) = await programs.system().submit_many(requests(programs.folder))
    assert isinstance(answer, Unanswered)


async def test_a_controller_that_gives_no_answer_for_one_job_is_asked_for_no_other(programs: Programs) -> None:
    programs.put("squeue", NO_JOBS)
    programs.put("sacct", "exit 1")
    programs.put("scontrol", "echo asked >> asked; kill -KILL $$")
    statuses = await programs.system().poll_all([f"{job}.stamp{job}" for job in range(5)])
    assert {status.state for status in statuses.values()} == {GlideinState.UNKNOWN}
    assert (programs.folder / "asked").read_text() == "asked\n"


async def test_a_controller_is_asked_for_some_jobs_in_a_look_and_for_all_in_turn(programs: Programs) -> None:
    programs.put("squeue", NO_JOBS)
    programs.put("sacct", "exit 1")
    programs.put("scontrol", 'echo "$4" >> asked; echo "JobId=$4"')
    system, ids = programs.system(), [f"{job}.stamp{job}" for job in range(1000, 1150)]
    for asked in (100, 200, 300):
        statuses = await system.poll_all(ids)
        assert {status.state for status in statuses.values()} == {GlideinState.UNKNOWN}
        jobs = (programs.folder / "asked").read_text().split()
        assert len(jobs) == asked
    assert sorted(jobs) == sorted(2 * [str(job) for job in range(1000, 1150)])


async def test_every_command_asks_the_cluster_that_jobs_go_to(programs: Programs) -> None:
    for name, script in (("squeue", NO_JOBS), ("sacct", "true"), ("scontrol", "exit 1"), ("sbatch", "echo '71;far'")):
        programs.put(name, f'echo "$0 $*" >> asked\n{script}')
    system = programs.system(cluster="far")
    assert await system.submit_many(requests(programs.folder)) == (Submitted("71.stamp0"),)
    await system.poll_all(["71.stamp0"])
    asked = (programs.folder / "asked").read_text().splitlines()
    assert len(asked) == 4
    assert all(" --clusters=far " in line for line in asked)


async def test_a_job_that_went_to_a_cluster_nobody_would_ask_is_cancelled_and_refused(programs: Programs) -> None:
    programs.put("sbatch", "echo '71;far'")
    programs.put("scancel", 'echo "$*" > cancelled')
    (answer,) = await programs.system().submit_many(requests(programs.folder))
    reason = 'big: sbatch has sent it to the cluster far: set cluster = "far" to use that one'
    assert answer == NotSubmitted(reason)
    assert (programs.folder / "cancelled").read_text() == "--clusters=far 71\n"


async def test_the_user_whose_jobs_count_is_asked_for_once(programs: Programs) -> None:
    programs.put("id", "echo asked >> asked; echo 1001")
    programs.put(
        "squeue",
        """echo '{"jobs": [
        {"job_id": 71, "user_id": 1001, "name": "pilotage-stamp0", "job_state": "RUNNING"},
        {"job_id": 72, "user_id": 1002, "name": "pilotage-stamp1", "job_state": "RUNNING"}]}'""",
    )
    system = programs.system()
    for _ in range(2):
        assert await system.find_by_stamp(["stamp0", "stamp1"]) == {"stamp0": "71.stamp0"}
    assert (programs.folder / "asked").read_text() == "asked\n"


async def test_sbatch_gets_no_token_of_ours(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    programs.put("sbatch", "env > seen; echo 71")
    assert await programs.system().submit_many(requests(programs.folder)) == (Submitted("71.stamp0"),)
    assert "secret" not in (programs.folder / "seen").read_text()


async def test_a_slurm_that_is_not_installed_is_a_refusal_that_names_the_program() -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=("/no/such/prefix",))
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many(requests(Path(os.sep)))
    assert answer == NotSubmitted("big: sbatch: /no/such/prefix: No such file or directory")


async def test_a_refusal_is_in_slurms_own_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many(requests(tmp_path, queue="shortt"))
    assert isinstance(answer, NotSubmitted)
    assert "invalid partition specified: shortt" in answer.reason


async def test_a_pilot_asks_slurm_for_its_sizes_and_writes_into_its_folder(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    told = ("sh", "-c", 'echo $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE; pwd; echo "it\'s me" >&2')
    request = GlideinRequest("sized", PARTITION, told, tmp_path, Shape(cpus=2, memory_mib=300), 90)
    (answer,) = await SlurmBatchSystem("big", settings, LocalHost()).submit_many([request])
    assert isinstance(answer, Submitted)
    job = answer.glidein_id.partition(".")[0]
    assert "TimeLimit=00:02:00" in slurm.run("scontrol", "show", "job", job)
    await until(lambda: (tmp_path / "pilot.log").exists() and "me" in (tmp_path / "pilot.log").read_text())
    assert (tmp_path / "pilot.log").read_text() == f"2 300\n{tmp_path}\nit's me\n"


async def test_a_real_submission_whose_connection_breaks_before_the_answer_is_found_again(
    slurm: SlurmCluster, sshd: SshServer, tmp_path: Path
) -> None:
    place = SshHost(sshd.settings())
    breaks = ("sh", "-c", '"$@" >&2; kill -KILL $PPID', "sh", *slurm.command_prefix)
    breaking = SlurmBatchSystem("big", SlurmBatchSystemSettings(type="slurm", command_prefix=breaks), place)
    request = GlideinRequest("broken", PARTITION, ("sleep", "1000"), tmp_path, Shape())
    (answer,) = await breaking.submit_many([request])
    assert isinstance(answer, Unanswered)
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    system = SlurmBatchSystem("big", settings, place)
    found = await system.find_by_stamp(["broken"])
    assert set(found) == {"broken"}
    await system.cancel_many(list(found.values()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit a job as somebody else")
async def test_a_real_job_of_another_user_that_names_our_stamp_is_not_taken_for_our_pilot(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    system = SlurmBatchSystem(
        "big", SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix), LocalHost()
    )
    forged = "sbatch --parsable --comment=pilotage:forged --chdir=/tmp --output=/dev/null --wrap 'sleep 1000'"
    job = slurm.run("su", "nobody", "-s", "/bin/sh", "-c", forged).strip()
    try:
        assert any(each["id"] == job for each in slurm.jobs())
        assert await system.find_by_stamp(["forged"]) == {}
    finally:
        slurm.run("scancel", job)


async def test_a_pilot_that_does_not_end_when_it_is_told_is_killed(slurm: SlurmCluster, tmp_path: Path) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix, kill_after_s=0)
    system = SlurmBatchSystem("big", settings, LocalHost())
    deaf = ("sh", "-c", "trap '' TERM; touch ready; while :; do sleep 0.1; done")
    (answer,) = await system.submit_many([GlideinRequest("deaf", PARTITION, deaf, tmp_path, Shape())])
    assert isinstance(answer, Submitted)
    await until((tmp_path / "ready").exists)
    await system.cancel_many([answer.glidein_id])
    assert (await end_of(system, answer.glidein_id)).reason.startswith("CANCELLED")


async def test_only_the_pilot_is_told_to_end_and_what_it_runs_is_left_to_it(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=slurm.command_prefix)
    system = SlurmBatchSystem("big", settings, LocalHost())
    child = "setsid sh -c \"trap 'echo told > child' TERM; touch ready; while ! [ -e go ]; do sleep 0.1; done\" &"
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
