"""What drain controllers hear from a real server of what each other has told nodes."""

from __future__ import annotations

from pilotage.v1.matcher_service_pb2 import NodeState, SlotState
from pilotage.v1.values_pb2 import Amounts
from pilotage.values.leadership import Leadership
from pilotage_agents.drain_controller.planning import NodeName
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.server import RunningServer, server
from support.wire_grid import WireGrid

__all__ = ["server"]


async def test_a_controller_tells_its_own_nodes_from_those_of_another_that_acts(server: RunningServer) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    size = Amounts(cpus=16)
    slot = SlotState(name="slot1", partitionable=True, amounts=size, free=Amounts(cpus=1))
    node = NodeState(name="n1", amounts=size, slots=[slot], settable_attributes=["OnlyMulticore"])
    grid.start_pilot().heartbeat(node=node)
    own, others = Leadership("drain controller of */*/*", "one"), Leadership("drain controller of site/*/*", "two")

    async def seen(link: AgentServerLink) -> tuple[bool, str]:
        (found,) = (await link.farm(())).nodes
        return found.only_multicore, found.set_by

    async with server.async_channel(server.token(Role.AGENT, owner="agent:drain")) as channel:
        first, second = AgentServerLink(channel, own), AgentServerLink(channel, others)
        for link, turn in ((first, own), (second, others)):
            assert (await link.take_leadership(turn, 60, "here")).granted
        await first.set_only_multicore([NodeName("SITE", "n1")], True)
        assert await seen(first) == (True, "")
        assert await seen(second) == (True, own.agent)
        await first.release_leadership(own)
        assert await seen(second) == (True, ""), "nobody looks after it any more"
    grid.close()
