"""Counts of slots by node and state, for views of a whole farm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.pilots.nodes import NodeId


class SlotCondition(NamedTuple):
    """State and activity in HTCondor's terms; `divided` = partitionable slots whose cores are all in dynamic slots."""

    state: str
    activity: str
    divided: bool


@dataclass(slots=True)
class SlotTotal:
    """A number of slots and their cores; a partitionable slot counts with its free cores."""

    slots: int = 0
    cpus: int = 0


@dataclass(slots=True)
class NodeSlotCounts:
    """The slots of a node by their condition; `draining` = all its pilots drain."""

    node: NodeId
    draining: bool = True
    last_seen: datetime | None = None
    counts: dict[SlotCondition, SlotTotal] = field(default_factory=dict)

    def add_pilot(self, *, draining: bool, last_seen: datetime | None, slots: Iterable[ReportedSlot]) -> None:
        """Add the slots of a pilot on the node."""
        self.draining = self.draining and draining
        self.last_seen = max((time for time in (self.last_seen, last_seen) if time is not None), default=None)
        for slot in slots:
            divided = slot.partitionable and slot.free.cpus == 0
            total = self.counts.setdefault(SlotCondition(slot.state, slot.activity, divided), SlotTotal())
            total.slots += 1
            total.cpus += slot.free.cpus if slot.partitionable else slot.amounts.cpus


class PilotSlots(NamedTuple):
    """A pilot on a node with its slots."""

    node: NodeId
    draining: bool
    last_seen: datetime | None
    slots: Iterable[ReportedSlot]


def count_by_node(pilots: Iterable[PilotSlots]) -> tuple[NodeSlotCounts, ...]:
    """Return the counts of the nodes of these pilots, by site and name."""
    nodes: dict[NodeId, NodeSlotCounts] = {}
    for pilot in pilots:
        counts = nodes.setdefault(pilot.node, NodeSlotCounts(pilot.node))
        counts.add_pilot(draining=pilot.draining, last_seen=pilot.last_seen, slots=pilot.slots)
    return tuple(nodes[node] for node in sorted(nodes))
