"""What the parts of a director share: its calls to the server, its folders and batch systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pilotage.clock import Clock
from pilotage.resources.tree import QueueId
from pilotage.values.demand import DemandAnswer
from pilotage.values.pilots import GlideinReport
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.runtime.link import RegisteredPilot, TreeQueue
from pilotage_agents.site_director.glideins import GlideinFolders


@dataclass(frozen=True, slots=True)
class PoolsOfQueues:
    """The pools of each queue, in the order of the request (None = the server does not know the queue)."""

    tree_version: int
    pools: tuple[tuple[str, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class GlideinReportAnswer:
    """Of reported glideins the stamps unknown to the server, and of ended ones those that had run a job.

    `logs_wanted` are those of ended ones whose output the server wants to see.
    """

    unknown: tuple[str, ...] = ()
    worked: tuple[str, ...] = ()
    logs_wanted: tuple[str, ...] = ()


class DirectorLink(Protocol):
    """The calls of a director; every method raises a PilotageError when its call fails."""

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""

    async def pools_of(self, queues: Sequence[QueueId]) -> PoolsOfQueues:
        """Return the pools that each queue can run, in one call."""

    async def demand(self, queues: Sequence[QueueId], queue_set: Sequence[str] = ()) -> DemandAnswer:
        """Return the work that waits for the queues and the supply that they have, and that of a set of queues."""

    async def register_pilots(
        self, queue: QueueId | None, count: int, vos: Sequence[str], lifetime_s: float, queue_set: Sequence[str] = ()
    ) -> tuple[RegisteredPilot, ...]:
        """Return stamps and tokens for new pilots of `queue`, None = of one of the queues of `queue_set`.

        `lifetime_s` 0 = the server's default.
        """

    async def renew_credentials(self, stamps: Sequence[str], lifetime_s: float) -> tuple[RegisteredPilot, ...]:
        """Return new tokens for at most 1,000 pilots; ended and unknown pilots get none."""

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinReportAnswer:
        """Report the states of glideins."""

    async def put_pilot_logs(self, logs: Mapping[str, str]) -> None:
        """Store the ends of the outputs of at most 100 pilots, by stamp."""


@dataclass(frozen=True, slots=True)
class DirectorContext:
    """The director's folders, link, batch systems and clock; `batch_systems` by their names in the settings."""

    folders: GlideinFolders
    link: DirectorLink
    batch_systems: Mapping[str, BatchSystem]
    clock: Clock
