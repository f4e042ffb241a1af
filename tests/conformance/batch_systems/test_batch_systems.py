"""The contract of all batch systems: submit, poll, cancel, find by stamp, collect output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    BatchSystem,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    Submitted,
)
from pilotage_agents.batch_systems.commands import CommandBatchSystem
from pilotage_agents.batch_systems.hosts import Host, LocalHost, SshHost
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.settings import (
    CommandBatchSystemSettings,
    HtcondorBatchSystemSettings,
    SlurmBatchSystemSettings,
)
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from support.fake_batch_systems import FakeBatchSystem, FakeSchedd
from support.slurm import PARTITION, SlurmCluster, TwoClusters
from support.sshd import SshServer
from support.workload_manager import commands

SLEEP = ("sleep", "1000")
SUCCEED = ("true",)
FAIL = ("false",)
PRINT_INPUT = ("cat", "input")


@dataclass
class Site:
    """A batch system under test; `restarted` returns the same system as a restarted director sees it."""

    system: BatchSystem
    restarted: Callable[[], BatchSystem]
    folder: Path
    queue: str = "default"
    ids: list[str] = field(default_factory=list)

    async def submit(self, *commands: tuple[str, ...], content: str = "") -> list[str]:
        """Submit glideins with an input file each, require success, and return their ids."""
        requests = [self._request(f"stamp{len(self.ids) + n}", command, content) for n, command in enumerate(commands)]
        answers = await self.system.submit_many(requests)
        ids = [answer.glidein_id for answer in answers if isinstance(answer, Submitted)]
        assert len(ids) == len(commands)
        self.ids += ids
        return ids

    def _request(self, stamp: str, command: tuple[str, ...], content: str) -> GlideinRequest:
        folder = self.folder / stamp
        folder.mkdir()
        (folder / "input").write_text(content)
        return GlideinRequest(stamp, self.queue, command, folder, Shape(cpus=1))


async def end_of(system: BatchSystem, glidein_id: str) -> GlideinStatus:
    """Return the status of a glidein once it has ended."""
    async with asyncio.timeout(30):
        while True:
            status = (await system.poll_all([glidein_id]))[glidein_id]
            if status.state is GlideinState.ENDED:
                return status
            await asyncio.sleep(0)


SLURMS = [
    pytest.param(system, marks=pytest.mark.process)
    for system in ("slurm", "slurm over ssh", "slurm of several clusters")
]


@pytest.fixture(params=["local", "fake", *SLURMS, "htcondor", "commands"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    match request.param:
        case "fake":
            fake = FakeBatchSystem()
            site = Site(fake, lambda: fake, tmp_path)
        case "slurm" | "slurm over ssh":
            cluster: SlurmCluster = request.getfixturevalue("slurm")
            settings = SlurmBatchSystemSettings(type="slurm", command_prefix=cluster.command_prefix)
            new = partial(SlurmBatchSystem, "slurm", settings, _host(request, tmp_path))
            site = Site(new(), new, tmp_path, PARTITION)
        case "slurm of several clusters":
            clusters: TwoClusters = request.getfixturevalue("slurm_clusters")
            far = SlurmBatchSystemSettings(type="slurm", command_prefix=clusters.near.command_prefix, cluster="far")
            new_far = partial(SlurmBatchSystem, "slurm", far, LocalHost())
            site = Site(new_far(), new_far, tmp_path, PARTITION)
        case "htcondor":
            htcondor = HtcondorBatchSystemSettings(type="htcondor")
            new_schedd = partial(HtcondorBatchSystem, "htcondor", htcondor, FakeSchedd())
            site = Site(new_schedd(), new_schedd, tmp_path)
        case "commands":
            by_command = CommandBatchSystemSettings(type="command", **commands(tmp_path / "manager"))
            new_manager = partial(CommandBatchSystem, "manager", by_command)
            site = Site(new_manager(), new_manager, tmp_path)
        case _:
            site = Site(LocalBatchSystem(tmp_path), lambda: LocalBatchSystem(tmp_path), tmp_path)
    yield site
    await site.system.cancel_many(site.ids)


def _host(request: pytest.FixtureRequest, folder: Path) -> Host:
    if request.param == "slurm":
        return LocalHost()
    sshd: SshServer = request.getfixturevalue("sshd")
    return SshHost(sshd.settings(folder=str(folder / "remote")))


async def test_each_glidein_gets_its_own_id_and_runs(site: Site) -> None:
    ids = await site.submit(SLEEP, SLEEP, SLEEP)
    assert len(set(ids)) == 3
    statuses = await site.system.poll_all(ids)
    assert {statuses[glidein_id].state for glidein_id in ids} <= {GlideinState.WAITING, GlideinState.RUNNING}


async def test_ended_glidein_has_exit_code(site: Site) -> None:
    succeeded, failed = await site.submit(SUCCEED, FAIL)
    assert (await end_of(site.system, succeeded)).exit_code == 0
    assert (await end_of(site.system, failed)).exit_code == 1


async def test_glidein_reads_its_files_and_its_output_is_collected(site: Site) -> None:
    (ended,) = await site.submit(PRINT_INPUT, content="read this")
    await end_of(site.system, ended)
    for _ in range(2):
        await site.system.collect([site.folder / "stamp0"])
    assert (site.folder / "stamp0" / LOG_NAME).read_text() == "read this"


async def test_cancel_ends_only_the_given_glidein(site: Site) -> None:
    first, second = await site.submit(SLEEP, SLEEP)
    await site.system.cancel_many([first])
    await end_of(site.system, first)
    assert (await site.system.poll_all([second]))[second].state is not GlideinState.ENDED


async def test_cancel_accepts_ended_and_unknown_glideins(site: Site) -> None:
    (ended,) = await site.submit(SUCCEED)
    await end_of(site.system, ended)
    await site.system.cancel_many([ended, "no such glidein"])
    assert (await end_of(site.system, ended)).exit_code == 0


async def test_unknown_id_has_state_unknown(site: Site) -> None:
    statuses = await site.system.poll_all(["no such glidein"])
    assert statuses["no such glidein"].state is GlideinState.UNKNOWN
    assert not statuses["no such glidein"].state.is_known


async def test_restarted_director_finds_its_glideins(site: Site) -> None:
    running, ended = await site.submit(SLEEP, SUCCEED)
    await end_of(site.system, ended)
    restarted = site.restarted()
    statuses = await restarted.poll_all([running, ended])
    assert statuses[running].state is GlideinState.RUNNING
    assert (statuses[ended].state, statuses[ended].exit_code) == (GlideinState.ENDED, 0)
    await restarted.cancel_many([running])
    await end_of(restarted, running)


async def test_finds_running_glidein_by_stamp(site: Site) -> None:
    running, ended = await site.submit(SLEEP, SUCCEED)
    await end_of(site.system, ended)
    found = await site.restarted().find_by_stamp(["stamp0", "stamp1", "never submitted"])
    assert dict(found) == {"stamp0": running}


async def test_accepts_empty_requests(site: Site) -> None:
    assert await site.system.submit_many([]) == ()
    assert await site.system.poll_all([]) == {}
    assert await site.system.find_by_stamp([]) == {}
    await site.system.cancel_many([])
    await site.system.collect([])
