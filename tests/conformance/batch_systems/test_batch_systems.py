"""What every batch system does, whatever it is made of."""

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
from pilotage_agents.batch_systems.hosts import Host, LocalHost, SshHost
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.settings import HtcondorBatchSystemSettings, SlurmBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from support.fake_batch_systems import FakeBatchSystem, FakeSchedd
from support.slurm import PARTITION, SlurmCluster, TwoClusters
from support.sshd import SshServer

RUNS_FOR_LONG = ("sleep", "1000")
ENDS_WELL = ("true",)
ENDS_BADLY = ("false",)
PRINTS_WHAT_IT_WAS_GIVEN = ("cat", "given")


@dataclass
class Site:
    """A batch system under test; `restarted` gives what a director sees after its restart."""

    system: BatchSystem
    restarted: Callable[[], BatchSystem]
    folder: Path
    queue: str = "default"
    ids: list[str] = field(default_factory=list)

    async def submit(self, *commands: tuple[str, ...], given: str = "") -> list[str]:
        """Submit glideins, which must be taken, with a file of their own; returns their ids."""
        requests = [self._request(f"stamp{len(self.ids) + n}", each, given) for n, each in enumerate(commands)]
        answers = await self.system.submit_many(requests)
        ids = [answer.glidein_id for answer in answers if isinstance(answer, Submitted)]
        assert len(ids) == len(commands)
        self.ids += ids
        return ids

    def _request(self, stamp: str, command: tuple[str, ...], given: str) -> GlideinRequest:
        folder = self.folder / stamp
        folder.mkdir()
        (folder / "given").write_text(given)
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


@pytest.fixture(params=["local", "fake", *SLURMS, "htcondor"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    match request.param:
        case "fake":
            fake = FakeBatchSystem()
            found = Site(fake, lambda: fake, tmp_path)
        case "slurm" | "slurm over ssh":
            cluster: SlurmCluster = request.getfixturevalue("slurm")
            settings = SlurmBatchSystemSettings(type="slurm", command_prefix=cluster.command_prefix)
            new = partial(SlurmBatchSystem, "slurm", settings, _place(request, tmp_path))
            found = Site(new(), new, tmp_path, PARTITION)
        case "slurm of several clusters":
            clusters: TwoClusters = request.getfixturevalue("slurm_clusters")
            far = SlurmBatchSystemSettings(type="slurm", command_prefix=clusters.near.command_prefix, cluster="far")
            new_far = partial(SlurmBatchSystem, "slurm", far, LocalHost())
            found = Site(new_far(), new_far, tmp_path, PARTITION)
        case "htcondor":
            htcondor = HtcondorBatchSystemSettings(type="htcondor")
            new_schedd = partial(HtcondorBatchSystem, "htcondor", htcondor, FakeSchedd())
            found = Site(new_schedd(), new_schedd, tmp_path)
        case _:
            found = Site(LocalBatchSystem(tmp_path), lambda: LocalBatchSystem(tmp_path), tmp_path)
    yield found
    await found.system.cancel_many(found.ids)


def _place(request: pytest.FixtureRequest, folder: Path) -> Host:
    if request.param == "slurm":
        return LocalHost()
    sshd: SshServer = request.getfixturevalue("sshd")
    return SshHost(sshd.settings(folder=str(folder / "there")))


async def test_every_glidein_gets_an_id_of_its_own_and_runs(site: Site) -> None:
    ids = await site.submit(RUNS_FOR_LONG, RUNS_FOR_LONG, RUNS_FOR_LONG)
    assert len(set(ids)) == 3
    statuses = await site.system.poll_all(ids)
    assert {statuses[each].state for each in ids} <= {GlideinState.WAITING, GlideinState.RUNNING}


async def test_a_glidein_that_ends_says_how(site: Site) -> None:
    well, badly = await site.submit(ENDS_WELL, ENDS_BADLY)
    assert (await end_of(site.system, well)).exit_code == 0
    assert (await end_of(site.system, badly)).exit_code == 1


async def test_a_glidein_runs_among_its_files_and_what_it_printed_comes_into_its_folder(site: Site) -> None:
    (ended,) = await site.submit(PRINTS_WHAT_IT_WAS_GIVEN, given="read this")
    await end_of(site.system, ended)
    for _ in range(2):
        await site.system.collect([site.folder / "stamp0"])
    assert (site.folder / "stamp0" / LOG_NAME).read_text() == "read this"


async def test_a_cancelled_glidein_ends_and_its_neighbour_goes_on(site: Site) -> None:
    first, second = await site.submit(RUNS_FOR_LONG, RUNS_FOR_LONG)
    await site.system.cancel_many([first])
    await end_of(site.system, first)
    assert (await site.system.poll_all([second]))[second].state is not GlideinState.ENDED


async def test_cancelling_what_has_ended_or_never_was_is_no_error(site: Site) -> None:
    (ended,) = await site.submit(ENDS_WELL)
    await end_of(site.system, ended)
    await site.system.cancel_many([ended, "no such glidein"])
    assert (await end_of(site.system, ended)).exit_code == 0


async def test_an_id_that_means_nothing_is_unknown_and_not_dead(site: Site) -> None:
    statuses = await site.system.poll_all(["no such glidein"])
    assert statuses["no such glidein"].state is GlideinState.UNKNOWN
    assert not statuses["no such glidein"].state.is_known


async def test_glideins_outlive_their_director_and_are_found_by_the_next_one(site: Site) -> None:
    running, ended = await site.submit(RUNS_FOR_LONG, ENDS_WELL)
    await end_of(site.system, ended)
    after = site.restarted()
    statuses = await after.poll_all([running, ended])
    assert statuses[running].state is GlideinState.RUNNING
    assert (statuses[ended].state, statuses[ended].exit_code) == (GlideinState.ENDED, 0)
    await after.cancel_many([running])
    await end_of(after, running)


async def test_a_glidein_whose_id_was_lost_is_found_by_its_stamp(site: Site) -> None:
    running, ended = await site.submit(RUNS_FOR_LONG, ENDS_WELL)
    await end_of(site.system, ended)
    found = await site.restarted().find_by_stamp(["stamp0", "stamp1", "never submitted"])
    assert dict(found) == {"stamp0": running}


async def test_nothing_asked_is_answered_with_nothing(site: Site) -> None:
    assert await site.system.submit_many([]) == ()
    assert await site.system.poll_all([]) == {}
    assert await site.system.find_by_stamp([]) == {}
    await site.system.cancel_many([])
    await site.system.collect([])
