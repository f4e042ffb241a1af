"""Which nodes drain for multicore jobs, and which take all jobs again.

The rules are those of Fallow (S. Jones, Liverpool). The setpoint is the number of cores that multicore jobs should
have; no job is stopped for it. A node with OnlyMulticore drains: single-core jobs end one by one and no new ones come.

Rules
-----
- A node is drained once it has room for a multicore job. It is reopened after a delay, whatever waits then.
- A node without room need not drain while no jobs, or only single-core or only multicore jobs, wait for its queues.
- Otherwise the nodes nearest to drained start to drain, as many as multicore jobs are missing to the setpoint. Nodes
  that drain already count. If too many drain, those furthest from drained are reopened first.
- Nodes come first for which a multicore job waits that no other node drains for.
- A job with more than one core is a multicore job and counts as one of the width in use, as in Fallow. Jobs on nodes
  without a settable OnlyMulticore count too.
- Nodes that another controller drains count as draining and are left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

ONLY_MULTICORE = "OnlyMulticore"
"""The node attribute that policies refer to."""


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """A host at a site."""

    site: str
    node: str

    def __str__(self) -> str:
        """Return "site/node", as the command line writes it."""
        return f"{self.site}/{self.node}"


@dataclass(frozen=True, slots=True)
class NodePart:
    """A part of a node in which a wide slot can become free: its free cores, and its jobs counted by their cores.

    `queue` = the index in the farm of its pilot's queue; None = no job can start there.
    """

    free_cpus: int
    running: Mapping[int, int]
    queue: int | None = 0

    @property
    def single(self) -> int:
        """The number of single-core jobs that run there."""
        return single_core(self.running)

    def may_have_room(self, width: int) -> bool:
        """Whether a job of `width` cores would fit if the single-core jobs ended."""
        return self.free_cpus + self.single >= width

    def nearness(self, width: int) -> float:
        """Return how near to drained it is, 0 = drained: by free cores, then by single-core jobs per missing core."""
        lacking = width - self.free_cpus
        return self.free_cpus + self.single / lacking if lacking > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FarmNode:
    """A node as the server reports it; `is_settable` = its policy lets OnlyMulticore be set.

    `set_by` = another active controller that has set the present value; "" = none.
    """

    name: NodeName
    parts: tuple[NodePart, ...]
    is_settable: bool = True
    only_multicore: bool = False
    set_by: str = ""

    @property
    def is_draining(self) -> bool:
        """Whether it takes multicore jobs only, by order of any controller."""
        return self.is_settable and self.only_multicore

    @property
    def queues(self) -> frozenset[int]:
        """The queues whose jobs can start there."""
        return frozenset(part.queue for part in self.parts if part.queue is not None)

    def restricted_to(self, queues: Collection[int]) -> FarmNode:
        """Return the node with its parts at these queues only."""
        return replace(self, parts=tuple(part for part in self.parts if part.queue in queues))

    def is_drained(self, width: int, contested: Collection[int]) -> bool:
        """Whether it has room at its `contested` queues or, if it has none of them, at any queue."""
        return self.restricted_to(self.queues & frozenset(contested) or self.queues).has_room(width)

    def has_room(self, width: int) -> bool:
        """Whether a job of `width` cores fits now."""
        return any(part.free_cpus >= width for part in self.parts)

    def able_parts(self, width: int) -> list[NodePart]:
        """Return the parts in which a job of `width` cores would fit if their single-core jobs ended."""
        return [part for part in self.parts if part.may_have_room(width)]

    def nearest(self, width: int) -> NodePart:
        """Return the part nearest to drained, of the able ones if there are any; the node must have parts."""
        return max(self.able_parts(width) or self.parts, key=lambda part: part.nearness(width))


@dataclass(frozen=True, slots=True)
class FarmDemand:
    """A number of waiting jobs with the same number of cores, and the queues that they could go to."""

    cpus: int
    jobs: int
    queues: frozenset[int]


@dataclass(frozen=True, slots=True)
class Farm:
    """Nodes and the jobs that wait for them, each counted once."""

    nodes: tuple[FarmNode, ...]
    waiting: tuple[FarmDemand, ...]

    @property
    def multicore_running(self) -> int:
        """The number of multicore jobs that run on all nodes."""
        return sum(multicore(part.running) for node in self.nodes for part in node.parts)

    def wanted(self, *, multicore: bool) -> tuple[FarmDemand, ...]:
        """Return the waiting multicore jobs, or the waiting single-core jobs."""
        return tuple(each for each in self.waiting if each.jobs > 0 and (each.cpus != 1) is multicore)

    @property
    def contested(self) -> frozenset[int]:
        """The queues for which both multicore and single-core jobs wait."""
        return _queues_of(self.wanted(multicore=True)) & _queues_of(self.wanted(multicore=False))


@dataclass(frozen=True, slots=True)
class Goal:
    """The number of cores for multicore jobs, which have `width` cores each."""

    setpoint: int
    width: int = 8

    @property
    def jobs(self) -> int:
        """The setpoint as a number of multicore jobs; a half is rounded up."""
        return (2 * self.setpoint + self.width) // (2 * self.width)


@dataclass(frozen=True, slots=True)
class Decision:
    """The new value of OnlyMulticore of a node, and why."""

    node: NodeName
    only_multicore: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The decisions, reopened nodes first; `reason` explains their number."""

    decisions: tuple[Decision, ...]
    reason: str


def single_core(jobs: Mapping[int, int]) -> int:
    """Return the number of single-core jobs of jobs that are counted by their cores."""
    return jobs.get(1, 0)


def multicore(jobs: Mapping[int, int]) -> int:
    """Return the number of multicore jobs of jobs that are counted by their cores."""
    return sum(jobs.values()) - single_core(jobs)


def drained_nodes(farm: Farm, width: int) -> frozenset[NodeName]:
    """Return the nodes that take multicore jobs only and have room for one, whatever waits."""
    contested = farm.contested
    return frozenset(node.name for node in _draining_here(farm) if node.is_drained(width, contested))


def draining_for_others(farm: Farm) -> Counter[str]:
    """Return how many nodes drain for other controllers, by controller."""
    return Counter(node.set_by for node in farm.nodes if node.is_draining and node.set_by)


def plan_drains(farm: Farm, goal: Goal, drained: Collection[NodeName]) -> DrainPlan:
    """Return the decisions for all nodes; `drained` nodes were drained a delay ago and are reopened now."""
    reopened, contested = tuple(_reopened(farm, goal.width, drained)), farm.contested
    if not contested:
        return DrainPlan(reopened, _missing_jobs(farm, frozenset().union(*(node.queues for node in farm.nodes))))
    reopened_names = {decision.node for decision in reopened}
    restricted = (
        node.restricted_to(contested) for node in farm.nodes if node.is_draining and node.name not in reopened_names
    )
    draining = [node for node in restricted if node.queues]
    running = farm.multicore_running
    missing = goal.jobs - running - len(draining)
    reason = (
        f"{goal.setpoint} cores are {goal.jobs} multicore jobs; {running} run and {len(draining)} nodes drain for one:"
        f" {abs(missing)} {'missing' if missing >= 0 else 'too many'}"
    )
    if missing >= 0:
        return DrainPlan((*reopened, *_started_drains(farm, draining, goal.width, missing)), reason)
    return DrainPlan((*reopened, *_cancelled_drains(draining, goal.width, -missing)), reason)


def _draining_here(farm: Farm) -> list[FarmNode]:
    """Return the nodes that drain for this controller."""
    return [node for node in farm.nodes if node.is_draining and not node.set_by]


def _reopened(farm: Farm, width: int, drained: Collection[NodeName]) -> Iterator[Decision]:
    """Yield the nodes whose room has been free for long enough, and those without room that need not drain.

    A node that got its room meanwhile waits for its own delay.
    """
    contested = farm.contested
    for node in _draining_here(farm):
        if node.name in drained:
            yield _reopen(node, f"it has had room for {width} cores")
        elif not node.queues & contested and not node.is_drained(width, contested):
            yield _reopen(node, f"{_missing_jobs(farm, node.queues)} for it")


def _queues_of(waiting: Iterable[FarmDemand]) -> frozenset[int]:
    return frozenset(queue for each in waiting for queue in each.queues)


def _missing_jobs(farm: Farm, queues: frozenset[int]) -> str:
    """Return which jobs are missing, so that nodes of these queues need not drain."""
    return f"no {'single-core' if queues & _queues_of(farm.wanted(multicore=True)) else 'multicore'} jobs wait"


def _started_drains(farm: Farm, draining: Iterable[FarmNode], width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes that start to drain, the nearest to drained first."""
    contested = farm.contested
    restricted = [node.restricted_to(contested) for node in farm.nodes if node.is_settable and not node.only_multicore]
    able = [node for node in restricted if not node.has_room(width) and node.able_parts(width)]
    nearest = _sorted_by_nearness(able, width, nearest_first=True)
    unserved = _Unserved(farm.wanted(multicore=True))
    for node in draining:
        unserved.serve(node, width)
    first = [node for node in nearest if unserved.serve(node, width)][:most]
    served = {node.name for node in first}
    chosen = [*first, *(node for node in nearest if node.name not in served)][:most]
    for node in _sorted_by_nearness(chosen, width, nearest_first=True):
        yield Decision(node.name, True, f"{_state(node, width)}, and is nearest to room for {width}")


class _Unserved:
    """The waiting multicore jobs that no node drains for."""

    def __init__(self, waiting: Iterable[FarmDemand]) -> None:
        self._waiting = sorted(waiting, key=lambda each: len(each.queues))
        self._left = [each.jobs for each in self._waiting]

    def serve(self, node: FarmNode, width: int) -> bool:
        """Assign one of the jobs that the node could run, one with few queues first; returns whether there is one."""
        queues = frozenset(part.queue for part in node.able_parts(width))
        for index, each in enumerate(self._waiting):
            if self._left[index] and queues & each.queues:
                self._left[index] -= 1
                return True
        return False


def _cancelled_drains(draining: Iterable[FarmNode], width: int, most: int) -> Iterable[Decision]:
    """Yield the nodes whose draining is cancelled, the furthest from drained first.

    Nodes that have just got their room are left out, as a multicore job may be about to take it; so are nodes of other
    controllers.
    """
    unfinished = [node for node in draining if not node.has_room(width) and not node.set_by]
    for node in _sorted_by_nearness(unfinished, width, nearest_first=False)[:most]:
        yield _reopen(node, f"too many nodes drain, and it is furthest from room for {width}")


def _sorted_by_nearness(nodes: Iterable[FarmNode], width: int, *, nearest_first: bool) -> Sequence[FarmNode]:
    sign = -1 if nearest_first else 1
    return sorted(nodes, key=lambda node: (sign * node.nearest(width).nearness(width), node.name))


def _reopen(node: FarmNode, reason: str) -> Decision:
    return Decision(node.name, False, reason)


def _state(node: FarmNode, width: int) -> str:
    part = node.nearest(width)
    return f"it has {part.free_cpus} cores free beside {part.single} single-core jobs"
