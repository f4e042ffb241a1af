"""A farm of many nodes in virtual time with single-core and multicore jobs, as the drain controller sees it.

Jobs start in the order in which they came, on any node where they fit; a node that is told OnlyMulticore takes those of
the full width alone.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from pilotage.resources.tree import QueueId
from pilotage.values.leadership import Leadership
from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.planning import ONLY_MULTICORE, Farm, FarmDemand, FarmNode, NodeName, NodePart
from pilotage_agents.runtime.link import TreeQueue
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.operations.pilots.nodes import get_node_use, set_node_attributes
from support.jobs import an_operator
from support.shared_data import LPC, METACENTRUM, TracedJob, traced_jobs
from support.virtual_grid import VirtualGrid


class Sample(NamedTuple):
    """What the farm was doing at one time."""

    time_s: float
    multicore_jobs: int
    single_core_jobs: int
    draining_nodes: int
    multicore_waiting: int
    single_core_waiting: int


@dataclass(eq=False)
class SimulatedNode:
    """One node; `running` counts its jobs by their cores."""

    name: NodeName
    free: int
    running: Counter[int] = field(default_factory=Counter)
    only_multicore: bool = False


class SimulatedFarm:
    """Nodes of so many cores, and jobs that come to them; it is the controller's server and its time."""

    def __init__(self, nodes: int, cores: int, jobs: Iterable[TracedJob], width: int = 8) -> None:
        self.now_s = 0.0
        self.samples: list[Sample] = []
        self._width = width
        names = (NodeName("SITE", f"n{number:04}") for number in range(nodes))
        self._nodes = {name: SimulatedNode(name, cores) for name in names}
        self._numbers = count()
        self._to_come = deque(sorted(jobs))
        self._ends: list[tuple[float, int, SimulatedNode, int]] = []
        self._waiting: dict[int, deque[tuple[float, TracedJob]]] = {1: deque(), width: deque()}
        self._open = dict.fromkeys(self._nodes.values())
        self._sample()

    # What the controller sees and does -----------------------------------------------------------------------------

    async def queues(self) -> tuple[TreeQueue, ...]:
        return ()

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        nodes = (
            FarmNode(node.name, (NodePart(node.free, dict(node.running)),), only_multicore=node.only_multicore)
            for node in self._nodes.values()
        )
        waiting = (FarmDemand(cores, len(jobs), frozenset({0})) for cores, jobs in self._waiting.items())
        return Farm(tuple(nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        for name in nodes:
            self._nodes[name].only_multicore = value
            self._fill(self._nodes[name])

    async def wait(self, length: timedelta) -> None:
        self.pass_time(length.total_seconds())

    def cut_short(self) -> None:
        raise AssertionError("nobody stops a simulation")

    # Time ----------------------------------------------------------------------------------------------------------

    def pass_time(self, length_s: float) -> None:
        """Let time pass, with all that happens in it."""
        end_s = self.now_s + length_s
        while (at_s := self._next_s()) <= end_s:
            self.now_s = at_s
            if self._ends and self._ends[0][0] <= at_s:
                self._end_job()
            else:
                self._take_job()
        self.now_s = end_s
        self._sample()

    def _next_s(self) -> float:
        ends_s = self._ends[0][0] if self._ends else float("inf")
        return min(ends_s, self._to_come[0].came_s if self._to_come else float("inf"))

    def _take_job(self) -> None:
        job = self._to_come.popleft()
        self._waiting[job.cores].append((job.came_s, job))
        node = next((node for node in self._open if self._takes(node, job.cores)), None)
        if node is not None:
            self._fill(node)

    def _end_job(self) -> None:
        _, _, node, cores = heapq.heappop(self._ends)
        node.free += cores
        node.running[cores] -= 1
        self._fill(node)

    def _takes(self, node: SimulatedNode, cores: int) -> bool:
        return cores <= node.free and (cores == self._width or not node.only_multicore)

    def _fill(self, node: SimulatedNode) -> None:
        """Start on a node the jobs that came first, as long as one fits."""
        while fitting := [waiting for cores, waiting in self._waiting.items() if waiting and self._takes(node, cores)]:
            _, job = min(fitting, key=lambda waiting: waiting[0]).popleft()
            node.free -= job.cores
            node.running[job.cores] += 1
            heapq.heappush(self._ends, (self.now_s + job.run_s, next(self._numbers), node, job.cores))
        if node.free:
            self._open[node] = None
        else:
            self._open.pop(node, None)

    def _sample(self) -> None:
        nodes = self._nodes.values()
        self.samples.append(
            Sample(
                self.now_s,
                sum(node.running[self._width] for node in nodes),
                sum(node.running[1] for node in nodes),
                sum(node.only_multicore for node in nodes),
                len(self._waiting[self._width]),
                len(self._waiting[1]),
            )
        )


async def controlled(farm: SimulatedFarm, controller: DrainController, until_s: float) -> None:
    """Let a controller look after the farm until then."""
    while farm.now_s < until_s:
        length = await controller.run_once()
        farm.pass_time(length.total_seconds())


CORES = 16
WIDTH = 8
FULL_SIZE = 1000
"""Nodes for which all jobs are taken; for fewer, as many fewer of them."""

HURRY = 800.0
"""So much faster jobs come than they did, so that jobs of a few hundred cores keep thousands busy."""

SINGLE_CORE_ROUNDS = 6
"""So often the log of single-core jobs is gone through."""

MULTICORE_FROM_S = 8 * 3600.0
"""When the first multicore job comes: single-core jobs have the farm by then."""


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """The jobs for a farm of so many nodes: LPC's of one core, and MetaCentrum's of many, each of which takes eight.

    That is what sites see of them whose multicore slots are all of one width.
    """

    traces: Path
    nodes: int

    def jobs(self) -> Iterator[TracedJob]:
        """Yield the jobs."""
        single_core = list(self._part_of(LPC))
        round_s = single_core[-1].came_s
        for number in range(SINGLE_CORE_ROUNDS):
            yield from (job._replace(came_s=job.came_s + number * round_s) for job in single_core)
        for job in self._part_of(METACENTRUM):
            if job.cores > 1:
                yield TracedJob(MULTICORE_FROM_S + job.came_s, job.run_s, WIDTH)

    def _part_of(self, log: str) -> Iterator[TracedJob]:
        every = max(1, FULL_SIZE // self.nodes)
        for job in islice(traced_jobs(self.traces / log), 0, None, every):
            yield job._replace(came_s=job.came_s / HURRY)


class GridDrainLink:
    """The server of a virtual grid, and its time; `told` notes what nodes were told.

    The controller that speaks to it acts as `agent`, whose turn it has from the start.
    """

    def __init__(self, grid: VirtualGrid, agent: str = "drain controller") -> None:
        self._grid = grid
        self._turn = Leadership(agent, "one copy")
        grid.grid.write(lambda transaction, _: take_leadership(transaction, self._turn, timedelta(days=1), "here"))
        self.told: list[tuple[str, bool]] = []

    async def queues(self) -> tuple[TreeQueue, ...]:
        return tuple(TreeQueue(queue, True, {}) for queue in self._grid.grid.state.tree.queues)

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        use = self._grid.grid.read(lambda transaction, state: get_node_use(transaction, state, queues, ONLY_MULTICORE))
        nodes = (
            FarmNode(
                NodeName(each.node.site, each.node.node),
                tuple(NodePart(part.free_cpus, part.running, part.queue) for part in each.parts),
                each.settable,
                each.is_true,
                "" if each.set_by == self._turn.agent else each.set_by,
            )
            for each in use.nodes
        )
        waiting = (FarmDemand(each.cpus, each.jobs, frozenset(each.queues)) for each in use.waiting)
        return Farm(tuple(nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        ids = [NodeId(node.site, node.node) for node in nodes]
        change = ({ONLY_MULTICORE: str(value)}, ())
        who = an_operator()
        self._grid.grid.write(
            lambda transaction, state: set_node_attributes(transaction, state, who, ids, change, self._turn.agent)
        )
        self._grid.settle()
        self.told += [(node.node, value) for node in nodes]

    def give_back_turn(self) -> None:
        """Let the agent act no more."""
        self._grid.grid.write(lambda transaction, _: release_leadership(transaction, self._turn))

    async def wait(self, length: timedelta) -> None:
        self._grid.pass_time(length.total_seconds())

    def cut_short(self) -> None:
        raise AssertionError("nobody stops it")
