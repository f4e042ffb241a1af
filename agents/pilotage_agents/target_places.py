"""From the settings and the tree to the places that copies go to."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, assert_never

from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_output import Bounds
from pilotage.resource_tree import QueueId
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.copy_folders import CopyFolders
from pilotage_agents.core.pilot_shape import queue_facts
from pilotage_agents.core.route_table import QueueTarget, ServerTarget, Target
from pilotage_agents.link import TreeQueue
from pilotage_agents.queue_copies import QueueCopies
from pilotage_agents.route_edges import CopyTarget
from pilotage_agents.router_settings import JobRouterSettings


class TreeLink(Protocol):
    """What it takes to know the tree."""

    def queues(self) -> Awaitable[Sequence[TreeQueue]]:
        """Return all queues of the tree, in its order."""


class TargetPlaces:
    """Places by targets, each made when it is first gone to; `batch_systems` by the names that the settings give.

    `folder` keeps what copies are given and leave; `origin` tells this router's from those of all others.
    """

    def __init__(
        self,
        settings: JobRouterSettings,
        link: TreeLink,
        batch_systems: Mapping[str, BatchSystem],
        folder: Path,
        origin: str,
    ) -> None:
        self._link = link
        self._origin = origin
        self._batch_systems = {
            fold(ce_type): batch_systems[name]
            for name, each in settings.batch_systems.items()
            for ce_type in each.ce_types
        }
        self._folders = CopyFolders(folder, Bounds(settings.max_file_bytes))
        self._places: dict[Target, CopyTarget] = {}

    async def open(self, target: Target) -> CopyTarget:
        """Return the place that a route's target names.

        Raises
        ------
        PilotageError
            When the server cannot be asked, does not have the queue, or nothing here serves its CEType.
        """
        if target not in self._places:
            self._places[target] = await self._made(target)
        return self._places[target]

    async def _made(self, target: Target) -> CopyTarget:
        match target:
            case QueueTarget(queue):
                return QueueCopies(queue, await self._batch_system(queue), self._folders, self._origin)
            case ServerTarget():
                raise InvalidInputError(Violation(str(target), "copies cannot go to other servers yet"))
            case _:
                assert_never(target)

    async def _batch_system(self, queue: QueueId) -> BatchSystem:
        for each in await self._link.queues():
            if each.id == queue:
                ce_type = queue_facts(each.parameters).ce_type
                if (found := self._batch_systems.get(ce_type)) is not None:
                    return found
                raise InvalidInputError(Violation(str(queue), f'no batch system here serves its CEType "{ce_type}"'))
        raise InvalidInputError(Violation(str(queue), "the tree has no such queue"))
