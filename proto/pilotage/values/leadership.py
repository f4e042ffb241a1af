"""Leadership of agents: of the replicas of an agent one acts at a time, and leads for a limited time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership of an agent, held or requested by one of its replicas; `holder` identifies the replica."""

    agent: str
    holder: str


@dataclass(frozen=True, slots=True)
class ServedQueues:
    """The queues that an agent acts on: those that match one of `patterns` and have one of `ce_types`; empty = any."""

    patterns: tuple[str, ...] = ()
    ce_types: tuple[str, ...] = ()


EVERY_SERVED_QUEUE = ServedQueues()
"""An agent that acts on all queues."""


@dataclass(frozen=True, slots=True)
class AgentCondition:
    """How a replica is: the release of its program, the time since its last cycle without a fault, and its fault.

    `release` "" = not known. `succeeded_ago` None = no cycle has succeeded yet. `fault` "" = its last cycle succeeded.
    """

    release: str = ""
    succeeded_ago: timedelta | None = None
    fault: str = ""


UNKNOWN_CONDITION = AgentCondition()
"""That of a replica that does not say how it is."""


@dataclass(frozen=True, slots=True)
class LeadershipAnswer:
    """Whether the requesting replica leads; the leader's host ("" = no leader), and how long it still leads."""

    granted: bool
    host: str
    left: timedelta = timedelta(0)
