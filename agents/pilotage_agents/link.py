"""What the agents need of the server: values, and one protocol per agent, which the real link and fakes fulfil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pilotage.job_description import Value
from pilotage.resource_tree import QueueId
from pilotage_agents.core.draining import Farm, NodeName
from pilotage_agents.core.provisioning import Demand
from pilotage_agents.core.serving import QueueSupply


@dataclass(frozen=True, slots=True)
class TreeQueue:
    """A queue of the tree with its effective values, as no VO's overlay changes them."""

    id: QueueId
    enabled: bool
    parameters: dict[str, Value]


@dataclass(frozen=True, slots=True)
class PoolsOfQueues:
    """The pools of each queue asked for, in order (None = the server does not know the queue)."""

    tree_version: int
    pools: tuple[tuple[str, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class DemandAnswer:
    """Waiting work, and one supply per queue asked for, in order."""

    demands: tuple[Demand, ...]
    supplies: tuple[QueueSupply, ...]


@dataclass(frozen=True, slots=True)
class NewPilot:
    """A pilot's stamp and the token that goes with it, which is new."""

    stamp: str
    token: str


@dataclass(frozen=True, slots=True)
class GlideinReport:
    """What became of the glidein of a pilot: it is in its batch system, or it has ended.

    `glidein_id` "" = none is known: its submission failed, or was not answered, so that it may be there.
    `called_back` = the director itself had it end.
    """

    stamp: str
    glidein_id: str
    ended: bool
    reason: str = ""
    called_back: bool = False


@dataclass(frozen=True, slots=True)
class GlideinsHeard:
    """Of reported glideins the stamps that the server does not know, and of ended ones those that had run a job."""

    unknown: tuple[str, ...] = ()
    worked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolOutline:
    """A pool as the cleanup agent sees it; `mapped` None = its mapping was never made."""

    id: str
    mapped: datetime | None
    live_jobs: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of an agent, and what tells the copy apart from all others that takes it."""

    agent: str
    holder: str


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """Whether the copy that asked has the turn, and where the copy runs that has it."""

    taken: bool
    place: str


class TurnLink(Protocol):
    """What copies of agents say to the server of their turns; raises a PilotageError when the call fails."""

    async def take_turn(self, turn: Turn, for_s: float, place: str) -> TurnAnswer:
        """Ask for the turn for so long from now, or to keep it; `place` is where the copy runs, for people."""

    async def give_back_turn(self, turn: Turn) -> None:
        """Let another copy have the turn at once."""


class DirectorLink(Protocol):
    """What the site director says to the server; every method raises a PilotageError when its call fails."""

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""

    async def pools_of(self, queues: Sequence[QueueId]) -> PoolsOfQueues:
        """Return the pools that each queue can run, asked in one call."""

    async def demand(self, queues: Sequence[QueueId]) -> DemandAnswer:
        """Return the work that waits for the queues and what is there to take it."""

    async def register_pilots(
        self, queue: QueueId, count: int, vos: Sequence[str], lifetime_s: float
    ) -> tuple[NewPilot, ...]:
        """Return stamps and tokens for new pilots of `queue`; `lifetime_s` 0 = the server's default."""

    async def renew_credentials(self, stamps: Sequence[str], lifetime_s: float) -> tuple[NewPilot, ...]:
        """Return new tokens for pilots, none for those that have ended or are not known; at most 1,000 at once."""

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinsHeard:
        """Say what became of glideins."""


class DrainLink(Protocol):
    """What the drain controller says to the server; every method raises a PilotageError when its call fails."""

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        """Return the nodes of these queues (none = of all) and what waits for them."""

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        """Set OnlyMulticore on all these nodes, or on none of them."""


class CleanupLink(Protocol):
    """What the pool cleanup says to the server; every method raises a PilotageError when its call fails."""

    async def refresh_pools(self, older_than_s: float) -> tuple[str, ...]:
        """Have mappings made anew that are older than `older_than_s`; returns the ids of their pools."""

    async def clean_pools(self, grace_s: float) -> tuple[str, ...]:
        """Have pools removed that had no live job for `grace_s`; returns their ids."""

    async def pools(self) -> tuple[PoolOutline, ...]:
        """Return all pools."""
