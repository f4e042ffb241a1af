"""What jobs use of nodes and what waits for the nodes, by numbers of cores: what draining nodes is decided by.

Rules
-----
The cores of a partitionable slot and those of its dynamic slots are one part of a node, in which a wider slot can come
free; a static slot is a part by itself. A dynamic slot counts also while its claim has no job: its cores are not free.
An attribute of a node is what was set from afar, else what the ad of its first slot says; it holds only where it is
True itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.classad_evaluation import Ad, is_true
from pilotage.classads import Expression
from pilotage.folding import fold
from pilotage.resource_tree import QueueId
from pilotage_server.core.node_settings import NodeId, NodeSettings, not_settable
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.reach import Reach
from pilotage_server.core.waiting import Waiting


@dataclass(frozen=True, slots=True)
class PartUse:
    """A part of a node: its free cores, and how many slots are in use there, by their cores."""

    free_cpus: int
    running: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node with live pilots; whether the attribute that was asked for can be set there now, and whether it holds."""

    node: NodeId
    parts: tuple[PartUse, ...]
    settable: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class FarmUse:
    """Nodes, by site and name, and how many jobs wait that could go to their queues, by the cores that each asks."""

    nodes: tuple[NodeUse, ...]
    waiting: Mapping[int, int]


def node_uses(slots: Iterable[SlotInfo], told: Mapping[NodeId, NodeSettings], attribute: str) -> tuple[NodeUse, ...]:
    """Return the nodes of these slots; of a pilot's slots none must be missing."""
    of_nodes: dict[NodeId, list[SlotInfo]] = defaultdict(list)
    for info in slots:
        of_nodes[NodeId(info.queue.site, info.node)].append(info)
    return tuple(
        _node_use(node, infos, told.get(node, NodeSettings(node)), attribute)
        for node, infos in sorted(of_nodes.items())
    )


def waiting_widths(waiting: Iterable[Waiting], queues: Sequence[QueueId], reach: Reach) -> Counter[int]:
    """Return how many jobs wait that could go to one of the queues, by the cores that each asks."""
    widths: Counter[int] = Counter()
    for each in waiting:
        if each.count > 0 and any(reach.can_go(each.task_queue, queue) for queue in queues):
            widths[each.task_queue.traits.amounts.cpus] += each.count
    return widths


def _node_use(node: NodeId, infos: Sequence[SlotInfo], told: NodeSettings, attribute: str) -> NodeUse:
    settable = any(not info.draining and not not_settable((attribute,), info.settable_attributes) for info in infos)
    return NodeUse(node, _parts(infos), settable, _holds(infos[0], told, attribute))


def _parts(infos: Iterable[SlotInfo]) -> tuple[PartUse, ...]:
    free: Counter[tuple[str, str]] = Counter()
    running: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for info in infos:
        slot = info.slot
        name, _, is_dynamic = slot.name.partition("_")
        part = running[info.pilot_stamp, name]
        if slot.partitionable:
            free[info.pilot_stamp, name] = slot.free.cpus
        elif is_dynamic or slot.job_id:
            part[slot.amounts.cpus] += 1
    return tuple(PartUse(free[key], counts) for key, counts in sorted(running.items()))


def _holds(slot: SlotInfo, told: NodeSettings, attribute: str) -> bool:
    ad = Ad.read(slot.slot.ad) if slot.slot.ad else Ad({})
    for setting in told.settings:
        if fold(setting.name) == fold(attribute):
            ad.set(attribute, Expression(setting.expression))
    return is_true(ad.value(attribute))
