"""The edges of a pilot: all of the world that its runner meets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pilotage.clock import BootClock, Clock
from pilotage_pilot.core.events import PoolsRead
from pilotage_pilot.link.base import ServerLink, Voice
from pilotage_pilot.node.base import Node
from pilotage_pilot.policy.keeper import PolicyKeeper
from pilotage_pilot.supervise.base import Workshop

ReadPools = Callable[[bool], Awaitable[PoolsRead]]
"""Finds out the pools; True = from the server, not from the file that the pilot was given."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges; in tests most have a twin. `policy` None = the built-in; `voice` None = there is no broker."""

    link: ServerLink
    workshop: Workshop
    node: Node
    clock: Clock
    boot_clock: BootClock
    policy: PolicyKeeper | None = None
    voice: Voice | None = None
