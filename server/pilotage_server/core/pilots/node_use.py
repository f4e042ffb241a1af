"""The use of nodes and the demand for them by width in cores: the input of the drain controller.

Rules
-----
- A partitionable slot and its dynamic slots are one part of a node, in which a wider slot can become free. A static
  slot is a part of its own.
- A claimed slot counts as used even without a job. The cores of a draining pilot are not free.
- An attribute of a node is the one that an operator or agent has set, else that of its first slot's ad. It holds only
  if it evaluates to True itself.
- A node with pilots of several queues can be set through its first queue only, so that two agents do not give it
  different values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.classads.evaluation import Ad, is_true
from pilotage.classads.library import Expression
from pilotage.resources.tree import QueueId
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings, not_settable
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.waiting_jobs import WaitingTaskQueue


@dataclass(frozen=True, slots=True)
class PartUse:
    """A part of a node: its free cores, and the number of used slots by their cores.

    `queue` = the index of its pilot's queue in `FarmUse.queues`; None = no job can start there.
    """

    free_cpus: int
    running: Mapping[int, int]
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node with live pilots: whether the attribute can be set there now, and whether it holds.

    `set_by` = the agent that has set it as leader and still leads; "" = none.
    """

    node: NodeId
    parts: tuple[PartUse, ...]
    settable: bool
    is_true: bool
    set_by: str = ""


@dataclass(frozen=True, slots=True)
class WaitingByCpus:
    """The number of waiting jobs with equal width that may go to the same queues (indexes in `FarmUse.queues`)."""

    cpus: int
    jobs: int
    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FarmUse:
    """Nodes by site and name, their queues without banned ones, and the demand for these queues."""

    nodes: tuple[NodeUse, ...]
    queues: tuple[QueueId, ...]
    waiting: tuple[WaitingByCpus, ...]

    @property
    def widths(self) -> Counter[int]:
        """The number of waiting jobs by width in cores."""
        widths: Counter[int] = Counter()
        for each in self.waiting:
            widths[each.cpus] += each.jobs
        return widths


@dataclass(frozen=True, slots=True)
class NodeUseQuery:
    """A query of node use: an attribute of nodes, and the queues of the nodes (none = all)."""

    attribute: str
    queues: frozenset[QueueId] = frozenset()

    def includes(self, queue: QueueId) -> bool:
        """Whether the queue is selected."""
        return not self.queues or queue in self.queues


@dataclass(frozen=True, slots=True)
class ActiveSettings:
    """The attributes set on nodes, and the agents that lead now."""

    settings: Mapping[NodeId, NodeSettings]
    acting: frozenset[str] = frozenset()

    def expression(self, node: NodeId, attribute: str) -> str:
        """Return the expression that the attribute was set to; "" = not set."""
        setting = self.settings.get(node, NodeSettings(node)).get(attribute)
        return setting.expression if setting is not None else ""

    def agent_of(self, node: NodeId, attribute: str) -> str:
        """Return the leading agent that has set the attribute; "" = none."""
        setting = self.settings.get(node, NodeSettings(node)).get(attribute)
        return setting.agent if setting is not None and setting.agent in self.acting else ""


def node_uses(
    slots: Iterable[SlotInfo], query: NodeUseQuery, queues: Sequence[QueueId], active: ActiveSettings
) -> tuple[NodeUse, ...]:
    """Return the nodes of the selected queues. `slots` must be complete; `queues` are those that take jobs."""
    of_nodes: dict[NodeId, list[SlotInfo]] = defaultdict(list)
    for info in slots:
        of_nodes[NodeId(info.queue.site, info.node)].append(info)
    indexes = {queue: index for index, queue in enumerate(queues)}
    return tuple(
        _node_use(node, infos, query, indexes, active)
        for node, infos in sorted(of_nodes.items())
        if any(query.includes(info.queue) for info in infos)
    )


def waiting_by_cpus(
    waiting: Iterable[WaitingTaskQueue], queues: Sequence[QueueId], reach: QueueAccess
) -> tuple[WaitingByCpus, ...]:
    """Return the waiting jobs that may go to some of the queues."""
    found: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for each in waiting:
        indexes = tuple(index for index, queue in enumerate(queues) if reach.admits(each.task_queue, queue))
        if each.count > 0 and indexes:
            found[each.task_queue.traits.amounts.cpus, indexes] += each.count
    return tuple(WaitingByCpus(cpus, jobs, indexes) for (cpus, indexes), jobs in sorted(found.items()))


def _node_use(
    node: NodeId,
    infos: Sequence[SlotInfo],
    query: NodeUseQuery,
    indexes: Mapping[QueueId, int],
    active: ActiveSettings,
) -> NodeUse:
    attribute, selected = query.attribute, [info for info in infos if query.includes(info.queue)]
    settable = query.includes(min(info.queue for info in infos)) and any(
        not info.draining and not not_settable((attribute,), info.settable_attributes) for info in selected
    )
    holds = _is_true(infos[0], active.expression(node, attribute), attribute)
    return NodeUse(node, _parts(selected, indexes), settable, holds, active.agent_of(node, attribute))


def _parts(infos: Iterable[SlotInfo], indexes: Mapping[QueueId, int]) -> tuple[PartUse, ...]:
    free: Counter[tuple[str, str]] = Counter()
    running: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    queues: dict[tuple[str, str], int | None] = {}
    for info in infos:
        slot = info.slot
        name, _, is_dynamic = slot.name.partition("_")
        key = info.pilot_stamp, name
        queues[key] = None if info.draining else indexes.get(info.queue)
        in_use = running[key]
        if not slot.partitionable and (is_dynamic or slot.job_id or slot.state == "Claimed"):
            in_use[slot.amounts.cpus] += 1
        elif info.asks_for_work:
            free[key] = slot.free.cpus
    return tuple(PartUse(free[key], counts, queues[key]) for key, counts in sorted(running.items()))


def _is_true(slot: SlotInfo, expression: str, attribute: str) -> bool:
    ad = Ad.read(slot.slot.ad) if slot.slot.ad else Ad({})
    if expression:
        ad.set(attribute, Expression(expression))
    return is_true(ad.value(attribute))
