"""Which nodes are to take multicore jobs alone until there is room for one, and which take all jobs again.

Rules
-----
Those of Fallow (S. Jones, Liverpool). The setpoint is how many cores multicore jobs should have; no job is ever
stopped for it. A node that is told OnlyMulticore drains: its single-core jobs end one by one and none come. Once it has
room for a multicore job it is drained; it is put back a while later, whatever waits, when a job has had the time to
take the room. A node without room is kept from nothing while jobs of only one kind wait that could go to its queues, or
none. Otherwise the nodes
nearest to drained begin to drain, as many as jobs are missing to the setpoint, those that drain already not counted
again; and where too many drain, those furthest from drained take all jobs again first. Nodes come first for which a
multicore job waits that no other node drains for. A single-core job has one core; every other job is a multicore job,
and counts as one of the width in use, as in Fallow. Jobs on nodes that cannot be told are counted too. What another
controller lets drain counts as draining, and is left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """A part of a node in which a wide slot can come free: its free cores, and its jobs by their cores.

    `queue` = its pilot's, as the farm numbers them; None = no job can come there.
    """

    free_cpus: int
    running: Mapping[int, int]
    queue: int | None = 0

    @property
    def single(self) -> int:
        """How many single-core jobs run there."""
        return single_core(self.running)

    def may_have_room(self, width: int) -> bool:
        """Whether a job of so many cores would fit in if the single-core jobs ended."""
        return self.free_cpus + self.single >= width

    def nearness(self, width: int) -> float:
        """Return how near to drained it is: more free cores are nearer, then more jobs that may end; 0 = it is."""
        lacking = width - self.free_cpus
        return self.free_cpus + self.single / lacking if lacking > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the server tells of it; `can_be_told` = its policy lets OnlyMulticore be set.

    `told_by` = another controller, which is at work and has told it what it is told; "" = none.
    """

    name: NodeName
    parts: tuple[Part, ...]
    can_be_told: bool = True
    only_multicore: bool = False
    told_by: str = ""

    @property
    def drains(self) -> bool:
        """Whether it was told to take multicore jobs alone, by whomever."""
        return self.can_be_told and self.only_multicore

    @property
    def queues(self) -> frozenset[int]:
        """The queues whose jobs can come there."""
        return frozenset(part.queue for part in self.parts if part.queue is not None)

    def at(self, queues: Collection[int]) -> Node:
        """Return the node with those of its parts alone that are at these queues."""
        return replace(self, parts=tuple(part for part in self.parts if part.queue in queues))

    def is_drained(self, width: int, contested: Collection[int]) -> bool:
        """Whether it has room where it drains: at its `contested` queues or, where none of its own is, at any."""
        return self.at(self.queues & frozenset(contested) or self.queues).has_room(width)

    def has_room(self, width: int) -> bool:
        """Whether a job of so many cores fits in now."""
        return any(part.free_cpus >= width for part in self.parts)

    def able_parts(self, width: int) -> list[Part]:
        """Return the parts in which a job of so many cores would fit if their single-core jobs ended."""
        return [part for part in self.parts if part.may_have_room(width)]

    def nearest(self, width: int) -> Part:
        """Return the part that is nearest to drained, of the able ones if there are any; the node has parts."""
        return max(self.able_parts(width) or self.parts, key=lambda part: part.nearness(width))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs that wait: so many, each of so many cores, which could go to these queues."""

    cpus: int
    jobs: int
    queues: frozenset[int]


@dataclass(frozen=True, slots=True)
class Farm:
    """Nodes, and the jobs that wait for them, each counted once."""

    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...]

    @property
    def multicore_running(self) -> int:
        """How many multicore jobs run on all nodes."""
        return sum(multicore(part.running) for node in self.nodes for part in node.parts)

    def wanted(self, *, multicore: bool) -> tuple[Waiting, ...]:
        """Return the multicore jobs that wait, or the single-core ones."""
        return tuple(each for each in self.waiting if each.jobs > 0 and (each.cpus != 1) is multicore)

    @property
    def contested(self) -> frozenset[int]:
        """The queues for which jobs of both kinds wait."""
        return _queues_of(self.wanted(multicore=True)) & _queues_of(self.wanted(multicore=False))


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
    """Return the nodes that take multicore jobs alone and have room for one, whatever waits."""
    contested = farm.contested
    return frozenset(node.name for node in _told(farm) if node.is_drained(width, contested))


def left_to_others(farm: Farm) -> Counter[str]:
    """Return how many nodes drain for other controllers, by controller."""
    return Counter(node.told_by for node in farm.nodes if node.drains and node.told_by)


def plan_drains(farm: Farm, goal: Goal, drained: Collection[NodeName]) -> Plan:
    """Return what to tell nodes; `drained` are those that were so a while ago, and are put back now."""
    back, contested = tuple(_put_back(farm, goal.width, drained)), farm.contested
    if not contested:
        return Plan(back, _what_lacks(farm, frozenset().union(*(node.queues for node in farm.nodes))))
    over = {decision.node for decision in back}
    there = (node.at(contested) for node in farm.nodes if node.drains and node.name not in over)
    draining = [node for node in there if node.queues]
    running = farm.multicore_running
    missing = goal.jobs - running - len(draining)
    reason = (
        f"{goal.setpoint} cores are {goal.jobs} multicore jobs; {running} run and {len(draining)} nodes drain for one:"
        f" {abs(missing)} {'missing' if missing >= 0 else 'too many'}"
    )
    if missing >= 0:
        return Plan((*back, *_begun(farm, draining, goal.width, missing)), reason)
    return Plan((*back, *_cancelled(draining, goal.width, -missing)), reason)


def _told(farm: Farm) -> list[Node]:
    """Return the nodes that drain, and that are not another controller's."""
    return [node for node in farm.nodes if node.drains and not node.told_by]


def _put_back(farm: Farm, width: int, drained: Collection[NodeName]) -> Iterator[Decision]:
    """Yield the nodes that have had their room for long enough, and those without room that need not drain.

    A node that has got its room meanwhile waits for its own delay.
    """
    contested = farm.contested
    for node in _told(farm):
        if node.name in drained:
            yield _again(node, f"it has had room for {width} cores")
        elif not node.queues & contested and not node.is_drained(width, contested):
            yield _again(node, f"{_what_lacks(farm, node.queues)} for it")


def _queues_of(waiting: Iterable[Waiting]) -> frozenset[int]:
    return frozenset(queue for each in waiting for queue in each.queues)


def _what_lacks(farm: Farm, queues: frozenset[int]) -> str:
    """Return which jobs lack, so that nodes of these queues need not drain."""
    return f"no {'single-core' if queues & _queues_of(farm.wanted(multicore=True)) else 'multicore'} jobs wait"


def _begun(farm: Farm, draining: Iterable[Node], width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes that begin to drain, the nearest to drained first."""
    contested = farm.contested
    there = [node.at(contested) for node in farm.nodes if node.can_be_told and not node.only_multicore]
    able = [node for node in there if not node.has_room(width) and node.able_parts(width)]
    nearest = _by_nearness(able, width, nearest_first=True)
    unserved = _Unserved(farm.wanted(multicore=True))
    for node in draining:
        unserved.serve(node, width)
    first = [node for node in nearest if unserved.serve(node, width)][:most]
    served = {node.name for node in first}
    chosen = [*first, *(node for node in nearest if node.name not in served)][:most]
    for node in _by_nearness(chosen, width, nearest_first=True):
        yield Decision(node.name, True, f"{_state(node, width)}, and is nearest to room for {width}")


class _Unserved:
    """The multicore jobs that wait and that no node drains for."""

    def __init__(self, waiting: Iterable[Waiting]) -> None:
        self._waiting = sorted(waiting, key=lambda each: len(each.queues))
        self._left = [each.jobs for each in self._waiting]

    def serve(self, node: Node, width: int) -> bool:
        """Let the node be for one of them, the one with the fewest queues; returns whether there is one for it."""
        queues = frozenset(part.queue for part in node.able_parts(width))
        for place, each in enumerate(self._waiting):
            if self._left[place] and queues & each.queues:
                self._left[place] -= 1
                return True
        return False


def _cancelled(draining: Iterable[Node], width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes whose draining is cancelled, the furthest from drained first.

    One that has just got its room is not among them: a multicore job may be about to take it; nor another controller's.
    """
    unfinished = [node for node in draining if not node.has_room(width) and not node.told_by]
    for node in _by_nearness(unfinished, width, nearest_first=False)[:most]:
        yield _again(node, f"too many nodes drain, and it is furthest from room for {width}")


def _by_nearness(nodes: Iterable[Node], width: int, *, nearest_first: bool) -> Sequence[Node]:
    sign = -1 if nearest_first else 1
    return sorted(nodes, key=lambda node: (sign * node.nearest(width).nearness(width), node.name))


def _again(node: Node, reason: str) -> Decision:
    return Decision(node.name, False, reason)


def _state(node: Node, width: int) -> str:
    part = node.nearest(width)
    return f"it has {part.free_cpus} cores free beside {part.single} single-core jobs"
