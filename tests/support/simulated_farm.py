"""A farm of many nodes with single-core and multicore jobs in virtual time, and links of a drain controller.

Jobs start in the order of submission on any node where they fit. A node that is set to OnlyMulticore takes multicore
jobs only.
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

CORES = 16
WIDTH = 8
FULL_SIZE = 1000
"""The number of nodes for all jobs of the logs; a smaller farm gets proportionally fewer jobs."""

ARRIVAL_SPEEDUP = 800.0
"""The factor of the submission rate, so that the jobs of a few hundred cores keep thousands busy."""

SINGLE_CORE_ROUNDS = 6
"""How often the log of single-core jobs is replayed."""

MULTICORE_FROM_S = 8 * 3600.0
"""The submission of the first multicore job: by then single-core jobs fill the farm."""


class Sample(NamedTuple):
    """The state of the farm at one time."""

    time_s: float
    multicore_jobs: int
    single_core_jobs: int
    draining_nodes: int
    multicore_waiting: int
    single_core_waiting: int


@dataclass(eq=False)
class SimulatedNode:
    """A node; `running` counts its jobs by their cores."""

    name: NodeName
    free: int
    running: Counter[int] = field(default_factory=Counter)
    only_multicore: bool = False


class SimulatedFarm:
    """Nodes of `cores` cores and a stream of jobs; it is also the controller's link and pause."""

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

    # The ports of the controller ------------------------------------------------------------------------------------

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
        raise AssertionError("a simulation is never stopped")

    # Time ----------------------------------------------------------------------------------------------------------

    def pass_time(self, length_s: float) -> None:
        """Advance the clock, with all submissions and ends on the way."""
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
        """Start jobs on a node in the order of submission, as long as one fits."""
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


async def run_controller(farm: SimulatedFarm, controller: DrainController, until_s: float) -> None:
    """Run the cycles of a controller until this time of the farm."""
    while farm.now_s < until_s:
        length = await controller.run_once()
        farm.pass_time(length.total_seconds())


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """The jobs for a farm of `nodes` nodes: those of LPC with one core, and those of MetaCentrum with several.

    Each multicore job takes eight cores, as at a site whose multicore slots all have one width.
    """

    traces: Path
    nodes: int

    def jobs(self) -> Iterator[TracedJob]:
        single_core = list(self._part_of(LPC))
        log_length_s = single_core[-1].came_s
        for number in range(SINGLE_CORE_ROUNDS):
            yield from (job._replace(came_s=job.came_s + number * log_length_s) for job in single_core)
        for job in self._part_of(METACENTRUM):
            if job.cores > 1:
                yield TracedJob(MULTICORE_FROM_S + job.came_s, job.run_s, WIDTH)

    def _part_of(self, log: str) -> Iterator[TracedJob]:
        every = max(1, FULL_SIZE // self.nodes)
        for job in islice(traced_jobs(self.traces / log), 0, None, every):
            yield job._replace(came_s=job.came_s / ARRIVAL_SPEEDUP)


class GridDrainLink:
    """Link and pause of a drain controller on a virtual grid.

    The controller acts as `agent`, which is the leader from the start. `changes` records node name and value of each
    change of OnlyMulticore.
    """

    def __init__(self, grid: VirtualGrid, agent: str = "drain controller") -> None:
        self._grid = grid
        self._leadership = Leadership(agent, "one copy")
        grid.grid.write(
            lambda transaction, _: take_leadership(transaction, self._leadership, timedelta(days=1), "here")
        )
        self.changes: list[tuple[str, bool]] = []

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
                "" if each.set_by == self._leadership.agent else each.set_by,
            )
            for each in use.nodes
        )
        waiting = (FarmDemand(each.cpus, each.jobs, frozenset(each.queues)) for each in use.waiting)
        return Farm(tuple(nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        ids = [NodeId(node.site, node.node) for node in nodes]
        change = ({ONLY_MULTICORE: str(value)}, ())
        operator = an_operator()
        self._grid.grid.write(
            lambda transaction, state: set_node_attributes(
                transaction, state, operator, ids, change, self._leadership.agent
            )
        )
        self._grid.settle()
        self.changes += [(node.node, value) for node in nodes]

    def release_leadership(self) -> None:
        """Release the agent's leadership."""
        self._grid.grid.write(lambda transaction, _: release_leadership(transaction, self._leadership))

    async def wait(self, length: timedelta) -> None:
        self._grid.pass_time(length.total_seconds())

    def cut_short(self) -> None:
        raise AssertionError("a simulation is never stopped")
