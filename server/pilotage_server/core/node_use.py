"""What jobs use of nodes and what waits for the nodes, by numbers of cores: what draining nodes is decided by.

Rules
-----
The cores of a partitionable slot and those of its dynamic slots are one part of a node, in which a wider slot can come
free; a static slot is a part by itself. A slot counts also while its claim has no job: its cores are not free, and
neither are those of a pilot that takes no more jobs. An attribute of a node is what was set from afar, else what
the ad of its first slot says; it holds only where it is True itself. A node with pilots of several queues is told by
who asks for the first of them, so that no two tell it different things.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.classad_evaluation import Ad, is_true
from pilotage.classads import Expression
from pilotage.resource_tree import QueueId
from pilotage_server.core.node_settings import NodeId, NodeSettings, not_settable
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.reach import Reach
from pilotage_server.core.waiting import Waiting


@dataclass(frozen=True, slots=True)
class PartUse:
    """A part of a node: its free cores, and how many slots are in use there, by their cores.

    `queue` = its pilot's, as a place among the farm's queues; None = no job can come there.
    """

    free_cpus: int
    running: Mapping[int, int]
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node with live pilots; whether the attribute that was asked for can be set there now, and whether it holds.

    `told_by` = the agent in whose turn it was set as it is; "" = in none, or in that of an agent that acts no more.
    """

    node: NodeId
    parts: tuple[PartUse, ...]
    settable: bool
    holds: bool
    told_by: str = ""


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """Jobs that each ask so many cores and could go to the same queues, told by their places among the farm's."""

    cpus: int
    jobs: int
    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FarmUse:
    """Nodes, by site and name; their queues that are not banned, in order; and what waits for these."""

    nodes: tuple[NodeUse, ...]
    queues: tuple[QueueId, ...]
    waiting: tuple[WaitingJobs, ...]

    @property
    def widths(self) -> Counter[int]:
        """How many jobs wait by the cores that each asks, wherever they could go."""
        widths: Counter[int] = Counter()
        for each in self.waiting:
            widths[each.cpus] += each.jobs
        return widths


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: an attribute of nodes, and of which queues (none = of all)."""

    attribute: str
    queues: frozenset[QueueId] = frozenset()

    def is_about(self, queue: QueueId) -> bool:
        """Whether what is at the queue is asked for."""
        return not self.queues or queue in self.queues


@dataclass(frozen=True, slots=True)
class Told:
    """What was set on nodes, and the agents that act now."""

    settings: Mapping[NodeId, NodeSettings]
    acting: frozenset[str] = frozenset()

    def expression(self, node: NodeId, attribute: str) -> str:
        """Return what the attribute was set to; "" = it was not set."""
        setting = self.settings.get(node, NodeSettings(node)).of(attribute)
        return setting.expression if setting is not None else ""

    def by(self, node: NodeId, attribute: str) -> str:
        """Return the agent, of those that act, in whose turn the attribute was set; "" = in none."""
        setting = self.settings.get(node, NodeSettings(node)).of(attribute)
        return setting.agent if setting is not None and setting.agent in self.acting else ""


def node_uses(
    slots: Iterable[SlotInfo], question: Question, queues: Sequence[QueueId], told: Told
) -> tuple[NodeUse, ...]:
    """Return the nodes of the queues asked for; of all slots none must be missing, `queues` take jobs."""
    of_nodes: dict[NodeId, list[SlotInfo]] = defaultdict(list)
    for info in slots:
        of_nodes[NodeId(info.queue.site, info.node)].append(info)
    places = {queue: place for place, queue in enumerate(queues)}
    return tuple(
        _node_use(node, infos, question, places, told)
        for node, infos in sorted(of_nodes.items())
        if any(question.is_about(info.queue) for info in infos)
    )


def waiting_jobs(waiting: Iterable[Waiting], queues: Sequence[QueueId], reach: Reach) -> tuple[WaitingJobs, ...]:
    """Return the jobs that wait and could go to some of the queues."""
    found: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for each in waiting:
        places = tuple(place for place, queue in enumerate(queues) if reach.can_go(each.task_queue, queue))
        if each.count > 0 and places:
            found[each.task_queue.traits.amounts.cpus, places] += each.count
    return tuple(WaitingJobs(cpus, jobs, places) for (cpus, places), jobs in sorted(found.items()))


def _node_use(
    node: NodeId, infos: Sequence[SlotInfo], question: Question, places: Mapping[QueueId, int], told: Told
) -> NodeUse:
    attribute, asked = question.attribute, [info for info in infos if question.is_about(info.queue)]
    settable = question.is_about(min(info.queue for info in infos)) and any(
        not info.draining and not not_settable((attribute,), info.settable_attributes) for info in asked
    )
    holds = _holds(infos[0], told.expression(node, attribute), attribute)
    return NodeUse(node, _parts(asked, places), settable, holds, told.by(node, attribute))


def _parts(infos: Iterable[SlotInfo], places: Mapping[QueueId, int]) -> tuple[PartUse, ...]:
    free: Counter[tuple[str, str]] = Counter()
    running: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    queues: dict[tuple[str, str], int | None] = {}
    for info in infos:
        slot = info.slot
        name, _, is_dynamic = slot.name.partition("_")
        key = info.pilot_stamp, name
        queues[key] = None if info.draining else places.get(info.queue)
        in_use = running[key]
        if not slot.partitionable and (is_dynamic or slot.job_id or slot.state == "Claimed"):
            in_use[slot.amounts.cpus] += 1
        elif info.asks_for_work:
            free[key] = slot.free.cpus
    return tuple(PartUse(free[key], counts, queues[key]) for key, counts in sorted(running.items()))


def _holds(slot: SlotInfo, told: str, attribute: str) -> bool:
    ad = Ad.read(slot.slot.ad) if slot.slot.ad else Ad({})
    if told:
        ad.set(attribute, Expression(told))
    return is_true(ad.value(attribute))
