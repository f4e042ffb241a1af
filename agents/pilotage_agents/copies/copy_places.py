"""The places that the job router's targets name: queues of the tree, and other servers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import assert_never

import structlog

from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.job_output import Bounds
from pilotage.resource_tree import QueueId
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.copies.copy_folders import CopyFolders
from pilotage_agents.copies.copy_records import kept_ce_type
from pilotage_agents.copies.queue_copies import QueueCopies
from pilotage_agents.copies.remote_server import RemoteServer, ServerAccess
from pilotage_agents.copies.server_copies import ServerCopies
from pilotage_agents.copies.server_copy_folders import ServerCopyFolders
from pilotage_agents.core.pilot_shape import queue_facts
from pilotage_agents.core.routes.route_table import QueueTarget, ServerTarget, Target
from pilotage_agents.link import TreeQueue
from pilotage_agents.router.route_edges import CopyTarget

log = structlog.get_logger()

ReadQueues = Callable[[], Awaitable[tuple[TreeQueue, ...]]]
"""Asks the server for the queues of its tree."""


def queue_copies_folder(folder: Path) -> Path:
    """Return where the folders of copies at queues lie in a router's folder."""
    return folder / "copies"


class ConfiguredPlaces:
    """Opens each place once, for as long as the process lives; `folder` is the router's.

    `batch_systems` are by folded CEType; `servers` are how other servers are reached, by their addresses as targets
    say them. `origin` tells this router's copies from those of others at the same places.
    """

    def __init__(
        self,
        folder: Path,
        bounds: Bounds,
        batch_systems: Mapping[str, BatchSystem],
        servers: Mapping[str, ServerAccess],
        queues: ReadQueues,
        origin: str,
    ) -> None:
        self._folder = folder
        self._bounds = bounds
        self._batch_systems = batch_systems
        self._servers = servers
        self._queues = queues
        self._origin = origin
        self._opened: dict[Target, CopyTarget] = {}

    async def open(self, target: Target) -> CopyTarget:
        """Return the place that a route's target names; raises a PilotageError when it cannot be had (now)."""
        if target not in self._opened:
            place = await self._place(target)
            self._opened.setdefault(target, place)  # somebody else may have opened it meanwhile
        return self._opened[target]

    async def _place(self, target: Target) -> CopyTarget:
        match target:
            case QueueTarget(queue):
                return await self._queue(queue)
            case ServerTarget():
                return await self._server(target)
            case _:
                assert_never(target)

    async def _queue(self, queue: QueueId) -> QueueCopies:
        root = queue_copies_folder(self._folder)
        found = next((each for each in await self._queues() if each.id == queue), None)
        if found is None:
            ce_type = await self._ce_type_before(root, queue)
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
        return QueueCopies(queue, system, CopyFolders(root, self._bounds, ce_type), self._origin)

    async def _ce_type_before(self, root: Path, queue: QueueId) -> str:
        """Return the CEType that a queue had which the tree has no more, and that has copies still.

        The server gives no job to such a queue. Raises NotFoundError when it has none.
        """
        ce_type = await asyncio.to_thread(kept_ce_type, root, queue)
        if not ce_type:
            raise NotFoundError("queue", str(queue))
        log.warning("queue is not in the tree any more: its copies are followed to their ends", queue=str(queue))
        return ce_type

    async def _server(self, target: ServerTarget) -> ServerCopies:
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
        line = RemoteServer(target.addresses, root_ca)
        root = self._folder / f"server-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
        return ServerCopies(line, ServerCopyFolders(root, self._origin), access.token_file)
