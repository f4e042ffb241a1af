"""What drain controllers hear from a real server of what each other has told nodes."""

from __future__ import annotations

from pilotage.v1.matcher_service_pb2 import NodeState, SlotState
from pilotage.v1.values_pb2 import Amounts
from pilotage_agents.core.draining import NodeName
from pilotage_agents.link import Turn
from pilotage_agents.server_link import ServerLink
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
    own, others = Turn("drain controller of */*/*", "one"), Turn("drain controller of site/*/*", "two")

    async def seen(link: ServerLink) -> tuple[bool, str]:
        (found,) = (await link.farm(())).nodes
        return found.only_multicore, found.told_by

    async with server.async_channel(server.token(Role.AGENT, owner="agent:drain")) as channel:
        first, second = ServerLink(channel, own), ServerLink(channel, others)
        for link, turn in ((first, own), (second, others)):
            assert (await link.take_turn(turn, 60, "here")).taken
        await first.set_only_multicore([NodeName("SITE", "n1")], True)
        assert await seen(first) == (True, "")
        assert await seen(second) == (True, own.agent)
        await first.give_back_turn(own)
        assert await seen(second) == (True, ""), "nobody looks after it any more"
    grid.close()
