"""The targets of the job router: opening them, and errors of unusable ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, NotFoundError, WorldError
from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.core.table import QueueTarget, ServerTarget
from pilotage_agents.router.targets.configured import ConfiguredTargets
from pilotage_agents.router.targets.queue import BatchQueueTarget
from pilotage_agents.router.targets.remote_server import ServerAccess
from pilotage_agents.router.targets.server import RemoteServerTarget
from pilotage_agents.runtime.link import TreeQueue
from support.fake_batch_systems import FakeBatchSystem
from support.routed_job_targets import InMemoryFiles, a_copy, submitted

SLURM, ARC = QueueId("A", "ce", "long"), QueueId("A", "ce", "arc")
OTHER_SERVER = ServerTarget(("localhost:1", "localhost:2"))


async def tree() -> tuple[TreeQueue, ...]:
    return (TreeQueue(SLURM, True, {"CEType": "SLURM"}), TreeQueue(ARC, True, {"CEType": "ARC"}))


def configured_targets(folder: Path, batch: FakeBatchSystem, **servers: ServerAccess) -> ConfiguredTargets:
    return ConfiguredTargets(folder, OutputLimits(1000), {"slurm": batch}, servers, tree, "here")


async def no_tree() -> tuple[TreeQueue, ...]:
    return ()


async def test_queue_is_served_by_the_batch_system_of_its_ce_type(tmp_path: Path) -> None:
    batch = FakeBatchSystem()
    targets = configured_targets(tmp_path, batch)
    target = await targets.open(QueueTarget(SLURM))
    assert isinstance(target, BatchQueueTarget)
    await submitted(target, InMemoryFiles(), a_copy("pilotage-7-1", "/bin/true"))
    assert [request.queue for request in batch.requests.values()] == ["long"]
    assert await targets.open(QueueTarget(SLURM)) is target


async def test_unknown_or_unsupported_queue_is_named_in_the_error(tmp_path: Path) -> None:
    targets = configured_targets(tmp_path, FakeBatchSystem())
    with pytest.raises(NotFoundError, match="there is no queue A/ce/gone"):
        await targets.open(QueueTarget(QueueId("A", "ce", "gone")))
    message = (
        r'A/ce/arc: no batch system is configured for its CEType "arc": none in .* has it in its ce_types.*: slurm'
    )
    with pytest.raises(InvalidInputError, match=message):
        await targets.open(QueueTarget(ARC))


async def test_server_target_is_opened_once(tmp_path: Path) -> None:
    targets = configured_targets(tmp_path, FakeBatchSystem(), **{"localhost:1,localhost:2": ServerAccess()})
    target = await targets.open(OTHER_SERVER)
    assert isinstance(target, RemoteServerTarget)
    assert await targets.open(ServerTarget(("localhost:1", "localhost:2"))) is target


async def test_error_of_unconfigured_server_lists_the_configured_ones(
    tmp_path: Path,
) -> None:
    targets = configured_targets(tmp_path, FakeBatchSystem(), **{"localhost:2": ServerAccess()})
    message = r'no section \[job_router.servers."localhost:1,localhost:2"\]; there are: localhost:2$'
    with pytest.raises(InvalidInputError, match=message):
        await targets.open(OTHER_SERVER)


async def test_unreadable_ca_file_is_named_in_the_error(tmp_path: Path) -> None:
    access = ServerAccess(ca_file=tmp_path / "ca.pem")
    targets = configured_targets(tmp_path, FakeBatchSystem(), **{"localhost:1,localhost:2": access})
    with pytest.raises(WorldError, match=r"ca\.pem: No such file"):
        await targets.open(OTHER_SERVER)


async def test_restarted_router_polls_routed_jobs_at_a_removed_queue(
    tmp_path: Path,
) -> None:
    batch = FakeBatchSystem()
    before = await configured_targets(tmp_path, batch).open(QueueTarget(SLURM))
    (reference,) = await submitted(before, InMemoryFiles(), a_copy("pilotage-7-1", "/bin/sleep", "1000"))
    after = ConfiguredTargets(tmp_path, OutputLimits(1000), {"slurm": batch}, {}, no_tree, "here")
    target = await after.open(QueueTarget(SLURM))
    assert (await target.poll([reference]))[reference].state is RoutedJobState.RUNNING
    await target.cancel([reference])
    assert batch.statuses["fake.1"].reason == "cancelled"
    with pytest.raises(NotFoundError, match="there is no queue A/ce/arc"):
        await after.open(QueueTarget(ARC))
