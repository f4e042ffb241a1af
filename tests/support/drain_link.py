"""What a drain controller says to a server, without the wire, and the virtual time that it waits in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pilotage.resources.tree import QueueId
from pilotage.values.leadership import Leadership
from pilotage_agents.drain_controller.planning import ONLY_MULTICORE, Farm, FarmDemand, FarmNode, NodeName, NodePart
from pilotage_agents.runtime.link import TreeQueue
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.operations.pilots.nodes import get_node_use, set_node_attributes
from support.submissions import an_operator
from support.virtual_grid import VirtualGrid


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
