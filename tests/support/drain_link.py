"""What a drain controller says to a server, without the wire, and the virtual time that it waits in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pilotage.resource_tree import QueueId
from pilotage_agents.core.draining import ONLY_MULTICORE, Farm, Node, NodeName, Part, Waiting
from pilotage_agents.link import TreeQueue
from pilotage_server.core.node_settings import NodeId
from pilotage_server.core.turns import Turn
from pilotage_server.operations.node_settings import set_node_attributes
from pilotage_server.operations.node_use import get_node_use
from pilotage_server.operations.turns import give_back_turn, take_turn
from support.submissions import an_operator
from support.virtual_grid import VirtualGrid


class GridDrainLink:
    """The server of a virtual grid, and its time; `told` notes what nodes were told.

    The controller that speaks to it acts as `agent`, whose turn it has from the start.
    """

    def __init__(self, grid: VirtualGrid, agent: str = "drain controller") -> None:
        self._grid = grid
        self._turn = Turn(agent, "one copy")
        grid.grid.write(lambda unit, _: take_turn(unit, self._turn, timedelta(days=1), "here"))
        self.told: list[tuple[str, bool]] = []

    async def queues(self) -> tuple[TreeQueue, ...]:
        return tuple(TreeQueue(queue, True, {}) for queue in self._grid.grid.world.tree.queues)

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        use = self._grid.grid.read(lambda unit, world: get_node_use(unit, world, queues, ONLY_MULTICORE))
        nodes = (
            Node(
                NodeName(each.node.site, each.node.node),
                tuple(Part(part.free_cpus, part.running, part.queue) for part in each.parts),
                each.settable,
                each.holds,
                "" if each.told_by == self._turn.agent else each.told_by,
            )
            for each in use.nodes
        )
        waiting = (Waiting(each.cpus, each.jobs, frozenset(each.queues)) for each in use.waiting)
        return Farm(tuple(nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        ids = [NodeId(node.site, node.node) for node in nodes]
        change = ({ONLY_MULTICORE: str(value)}, ())
        who = an_operator()
        self._grid.grid.write(lambda unit, world: set_node_attributes(unit, world, who, ids, change, self._turn.agent))
        self._grid.settle()
        self.told += [(node.node, value) for node in nodes]

    def give_back_turn(self) -> None:
        """Let the agent act no more."""
        self._grid.grid.write(lambda unit, _: give_back_turn(unit, self._turn))

    async def wait(self, length: timedelta) -> None:
        self._grid.pass_time(length.total_seconds())

    def cut_short(self) -> None:
        raise AssertionError("nobody stops it")
