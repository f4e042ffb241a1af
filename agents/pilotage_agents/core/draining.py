"""Which nodes are to take multicore jobs alone until there is room for one, and which take all jobs again.

Rules
-----
Those of Fallow (S. Jones, Liverpool). The setpoint is how many cores multicore jobs should have; no job is ever
stopped for it. A node that is told OnlyMulticore drains: its single-core jobs end one by one and none come. Once it has
room for a multicore job it is drained; it is put back a while later, when a job has had the time to take the room.
While jobs of only one kind wait, or none, no node is kept from anything. Otherwise the nodes nearest to drained begin
to drain, as many as jobs are missing to the setpoint, those that drain already not counted again; and where too many
drain, those furthest from drained take all jobs again first. A single-core job has one core; every other job is a
multicore job, and counts as one of the width in use, as in Fallow. Jobs on nodes that cannot be told are counted too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

ONLY_MULTICORE = "OnlyMulticore"
"""The attribute of nodes that policies look at."""


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """A host at a site."""

    site: str
    node: str

    def __str__(self) -> str:
        """Return "site/node", as commands name it."""
        return f"{self.site}/{self.node}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a node in which a wide slot can come free: its free cores, and its jobs by their cores."""

    free_cpus: int
    running: Mapping[int, int]

    @property
    def single(self) -> int:
        """How many single-core jobs run there."""
        return single_core(self.running)

    def nearness(self, width: int) -> float:
        """Return how near to drained it is: more free cores are nearer, then more jobs that may end; 0 = it is."""
        lacking = width - self.free_cpus
        return self.free_cpus + self.single / lacking if lacking > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the server tells of it; `can_be_told` = its policy lets OnlyMulticore be set."""

    name: NodeName
    parts: tuple[Part, ...]
    can_be_told: bool = True
    only_multicore: bool = False

    def has_room(self, width: int) -> bool:
        """Whether a job of so many cores fits in now."""
        return any(part.free_cpus >= width for part in self.parts)

    def may_have_room(self, width: int) -> bool:
        """Whether a job of so many cores would fit in if the single-core jobs of a part ended."""
        return any(part.free_cpus + part.single >= width for part in self.parts)

    def nearness(self, width: int) -> float:
        """Return the nearness of its part that is nearest to drained."""
        return max((part.nearness(width) for part in self.parts), default=0.0)


@dataclass(frozen=True, slots=True)
class Farm:
    """Nodes, and the jobs that wait for them by their cores."""

    nodes: tuple[Node, ...]
    waiting: Mapping[int, int]

    @property
    def multicore_running(self) -> int:
        """How many multicore jobs run on all nodes."""
        return sum(multicore(part.running) for node in self.nodes for part in node.parts)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is aimed at: so many cores for multicore jobs of `width` cores."""

    setpoint: int
    width: int = 8

    @property
    def jobs(self) -> int:
        """How many multicore jobs that is: a half is rounded up."""
        return (2 * self.setpoint + self.width) // (2 * self.width)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node is to be told, and why."""

    node: NodeName
    only_multicore: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What nodes are to be told, those first that take all jobs again; `reason` says why so many."""

    decisions: tuple[Decision, ...]
    reason: str


def single_core(jobs: Mapping[int, int]) -> int:
    """Return how many of the jobs, which are counted by their cores, are single-core jobs."""
    return jobs.get(1, 0)


def multicore(jobs: Mapping[int, int]) -> int:
    """Return how many of them are multicore jobs."""
    return sum(jobs.values()) - single_core(jobs)


def drained_nodes(farm: Farm, width: int) -> frozenset[NodeName]:
    """Return the nodes that take multicore jobs alone and have room for one."""
    return frozenset(node.name for node in _told(farm) if node.has_room(width))


def plan_drains(farm: Farm, goal: Goal, drained: Collection[NodeName]) -> Plan:
    """Return what to tell nodes; `drained` are those that were so a while ago, and are put back now."""
    told = _told(farm)
    back = [_again(node, f"it has had room for {goal.width} cores") for node in told if node.name in drained]
    draining = [node for node in told if node.name not in drained]
    idle = _nothing_to_do(farm)
    if idle:
        return Plan((*back, *(_again(node, idle) for node in draining)), idle)
    running = farm.multicore_running
    missing = goal.jobs - running - len(draining)
    reason = (
        f"{goal.setpoint} cores are {goal.jobs} multicore jobs; {running} run and {len(draining)} nodes drain for one:"
        f" {abs(missing)} {'missing' if missing >= 0 else 'too many'}"
    )
    if missing >= 0:
        return Plan((*back, *_begun(farm, goal.width, missing)), reason)
    return Plan((*back, *_cancelled(draining, goal.width, -missing)), reason)


def _told(farm: Farm) -> list[Node]:
    return [node for node in farm.nodes if node.can_be_told and node.only_multicore]


def _nothing_to_do(farm: Farm) -> str:
    """Return why no node needs to drain; "" = jobs of both kinds wait."""
    if not multicore(farm.waiting):
        return "no multicore jobs wait"
    return "" if single_core(farm.waiting) else "no single-core jobs wait"


def _begun(farm: Farm, width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes that begin to drain, the nearest to drained first."""
    able = [
        node
        for node in farm.nodes
        if node.can_be_told and not node.only_multicore and not node.has_room(width) and node.may_have_room(width)
    ]
    for node in _by_nearness(able, width, nearest_first=True)[:most]:
        yield Decision(node.name, True, f"{_state(node)}, and is nearest to room for {width}")


def _cancelled(draining: Iterable[Node], width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes whose draining is cancelled, the furthest from drained first.

    One that has just got its room is not among them: a multicore job may be about to take it.
    """
    unfinished = [node for node in draining if not node.has_room(width)]
    for node in _by_nearness(unfinished, width, nearest_first=False)[:most]:
        yield _again(node, f"too many nodes drain, and it is furthest from room for {width}")


def _by_nearness(nodes: Iterable[Node], width: int, *, nearest_first: bool) -> Sequence[Node]:
    sign = -1 if nearest_first else 1
    return sorted(nodes, key=lambda node: (sign * node.nearness(width), node.name))


def _again(node: Node, reason: str) -> Decision:
    return Decision(node.name, False, reason)


def _state(node: Node) -> str:
    free = max((part.free_cpus for part in node.parts), default=0)
    return f"it has {free} cores free beside {sum(part.single for part in node.parts)} single-core jobs"
