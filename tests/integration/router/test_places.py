"""The places that targets name: which there are, and why one cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, NotFoundError, WorldError
from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.core.table import QueueTarget, ServerTarget
from pilotage_agents.router.places.places import ConfiguredTargets
from pilotage_agents.router.places.queue import BatchQueueTarget
from pilotage_agents.router.places.remote_server import ServerAccess
from pilotage_agents.router.places.server import RemoteServerTarget
from pilotage_agents.runtime.link import TreeQueue
from support.copy_targets import HeldFiles, a_copy, submitted
from support.fake_batch_systems import FakeBatchSystem

SLURM, ODD = QueueId("A", "ce", "long"), QueueId("A", "ce", "odd")
OTHER = ServerTarget(("localhost:1", "localhost:2"))


async def the_tree() -> tuple[TreeQueue, ...]:
    return (TreeQueue(SLURM, True, {"CEType": "SLURM"}), TreeQueue(ODD, True, {"CEType": "ARC"}))


def places(folder: Path, batch: FakeBatchSystem, **servers: ServerAccess) -> ConfiguredTargets:
    return ConfiguredTargets(folder, OutputLimits(1000), {"slurm": batch}, servers, the_tree, "here")


async def no_tree() -> tuple[TreeQueue, ...]:
    return ()


async def test_a_queue_is_pushed_into_by_the_batch_system_of_its_type(tmp_path: Path) -> None:
    batch = FakeBatchSystem()
    found = places(tmp_path, batch)
    target = await found.open(QueueTarget(SLURM))
    assert isinstance(target, BatchQueueTarget)
    await submitted(target, HeldFiles(), a_copy("pilotage-7-1", "/bin/true"))
    assert [request.queue for request in batch.requests.values()] == ["long"]
    assert await found.open(QueueTarget(SLURM)) is target


async def test_a_queue_that_is_not_there_or_has_no_batch_system_is_named(tmp_path: Path) -> None:
    found = places(tmp_path, FakeBatchSystem())
    with pytest.raises(NotFoundError, match="there is no queue A/ce/gone"):
        await found.open(QueueTarget(QueueId("A", "ce", "gone")))
    why = r'A/ce/odd: no batch system is configured for its CEType "arc": none in .* has it in its ce_types.*: slurm'
    with pytest.raises(InvalidInputError, match=why):
        await found.open(QueueTarget(ODD))


async def test_another_server_is_opened_once_with_what_is_said_of_it(tmp_path: Path) -> None:
    found = places(tmp_path, FakeBatchSystem(), **{"localhost:1,localhost:2": ServerAccess()})
    target = await found.open(OTHER)
    assert isinstance(target, RemoteServerTarget)
    assert await found.open(ServerTarget(("localhost:1", "localhost:2"))) is target


async def test_a_server_of_which_the_configuration_says_nothing_is_named_with_those_that_there_are(
    tmp_path: Path,
) -> None:
    found = places(tmp_path, FakeBatchSystem(), **{"localhost:2": ServerAccess()})
    why = r'no section \[job_router.servers."localhost:1,localhost:2"\]; there are: localhost:2$'
    with pytest.raises(InvalidInputError, match=why):
        await found.open(OTHER)


async def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    access = ServerAccess(ca_file=tmp_path / "ca.pem")
    found = places(tmp_path, FakeBatchSystem(), **{"localhost:1,localhost:2": access})
    with pytest.raises(WorldError, match=r"ca\.pem: No such file"):
        await found.open(OTHER)


async def test_copies_at_a_queue_that_the_tree_has_no_more_are_followed_by_a_router_that_starts_again(
    tmp_path: Path,
) -> None:
    batch = FakeBatchSystem()
    before = await places(tmp_path, batch).open(QueueTarget(SLURM))
    (reference,) = await submitted(before, HeldFiles(), a_copy("pilotage-7-1", "/bin/sleep", "1000"))
    after = ConfiguredTargets(tmp_path, OutputLimits(1000), {"slurm": batch}, {}, no_tree, "here")
    target = await after.open(QueueTarget(SLURM))
    assert (await target.poll([reference]))[reference].state is RoutedJobState.RUNNING
    await target.cancel([reference])
    assert batch.statuses["fake.1"].reason == "cancelled"
    with pytest.raises(NotFoundError, match="there is no queue A/ce/odd"):
        await after.open(QueueTarget(ODD))
