"""Opens the configured targets of the job router: queues of the tree, and other servers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import assert_never

import structlog

from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.batch_systems.shape import queue_facts
from pilotage_agents.router.core.table import QueueTarget, ServerTarget, Target
from pilotage_agents.router.ports import RoutedJobTarget
from pilotage_agents.router.targets.job_folders import RoutedJobFolders, kept_ce_type
from pilotage_agents.router.targets.queue import BatchQueueTarget
from pilotage_agents.router.targets.remote_server import RemoteServer, ServerAccess
from pilotage_agents.router.targets.server import RemoteJobFolders, RemoteServerTarget
from pilotage_agents.runtime.link import TreeQueue

log = structlog.get_logger()

ReadQueues = Callable[[], Awaitable[tuple[TreeQueue, ...]]]
"""Requests the queues of the tree from the server."""


def queue_jobs_folder(folder: Path) -> Path:
    """Return the folder of routed jobs at queues, in a router's folder."""
    return folder / "copies"


class ConfiguredTargets:
    """Opens each target once in the life of the process; `folder` is the router's.

    `batch_systems` are by folded CEType; `servers` are by their addresses as in targets. `origin` distinguishes this
    router's jobs from those of others at the same target. A job at a queue that fails keeps its place until `plug_s`
    after its start.
    """

    def __init__(
        self,
        folder: Path,
        bounds: OutputLimits,
        batch_systems: Mapping[str, BatchSystem],
        servers: Mapping[str, ServerAccess],
        queues: ReadQueues,
        origin: str,
        plug_s: int = 0,
    ) -> None:
        self._folder = folder
        self._bounds = bounds
        self._batch_systems = batch_systems
        self._servers = servers
        self._queues = queues
        self._origin = origin
        self._plug_s = plug_s
        self._opened: dict[Target, RoutedJobTarget] = {}

    async def open(self, target: Target) -> RoutedJobTarget:
        """Return the target; raises a PilotageError if it is not available now."""
        if target not in self._opened:
            match target:
                case QueueTarget(queue):
                    opened: RoutedJobTarget = await self._queue(queue)
                case ServerTarget():
                    opened = await self._server(target)
                case _:
                    assert_never(target)
            self._opened.setdefault(target, opened)  # a concurrent call may have opened it
        return self._opened[target]

    async def _queue(self, queue: QueueId) -> BatchQueueTarget:
        root = queue_jobs_folder(self._folder)
        found = next((each for each in await self._queues() if each.id == queue), None)
        if found is None:
            ce_type = await self._former_ce_type(root, queue)
        else:
            ce_type = queue_facts(found.parameters).ce_type
        system = self._batch_systems.get(ce_type)
        if system is None:
            known = ", ".join(sorted(self._batch_systems)) or "none"
            why = (
                f'no batch system is configured for its CEType "{ce_type}": none in [job_router.batch_systems] has it '
                f"in its ce_types; these are: {known}"
            )
            raise InvalidInputError(Violation(str(queue), why))
        folders = RoutedJobFolders(root, self._bounds, ce_type, self._plug_s)
        return BatchQueueTarget(queue, system, folders, self._origin)

    async def _former_ce_type(self, root: Path, queue: QueueId) -> str:
        """Return the former CEType of a queue that has left the tree and still has routed jobs.

        The server gives no job to such a queue. Raises NotFoundError if it has no routed job.
        """
        ce_type = await asyncio.to_thread(kept_ce_type, root, queue)
        if not ce_type:
            raise NotFoundError("queue", str(queue))
        log.warning("queue is no longer in the tree: its routed jobs are monitored until they end", queue=str(queue))
        return ce_type

    async def _server(self, target: ServerTarget) -> RemoteServerTarget:
        address = ",".join(target.addresses)
        access = self._servers.get(address)
        if access is None:
            known = "; ".join(sorted(self._servers)) or "none"
            why = f'there is no section [job_router.servers."{address}"]; there are: {known}'
            raise InvalidInputError(Violation(str(target), why))
        try:
            root_ca = await asyncio.to_thread(access.ca_file.read_bytes) if access.ca_file else None
        except OSError as error:
            raise WorldError(f"{access.ca_file}: {error.strerror}", transient=True) from error
        server = RemoteServer(target.addresses, root_ca)
        root = self._folder / f"server-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
        return RemoteServerTarget(server, RemoteJobFolders(root, self._origin), access.token_file)
