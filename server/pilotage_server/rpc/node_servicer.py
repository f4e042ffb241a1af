"""NodeService: nodes and slots as their pilots report them, and what operators set on nodes."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import node_service_pb2, node_service_pb2_grpc
from pilotage.wire import queue_from_wire, text_from_wire
from pilotage_server.operations.node_settings import list_node_attributes, set_node_attributes
from pilotage_server.operations.node_use import get_node_use
from pilotage_server.operations.slots import list_slots
from pilotage_server.operations.turns import hold_turn
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_pilots import (
    farm_use_to_wire,
    node_ids_from_wire,
    node_settings_to_wire,
    slot_info_to_wire,
)
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, each, name_from_wire, not_too_many
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit


class NodeServicer(node_service_pb2_grpc.NodeServiceServicer):
    """Shows nodes and slots, and sets what operators want of nodes."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListSlots(
        self, request: node_service_pb2.ListSlotsRequest, context: Any
    ) -> node_service_pb2.ListSlotsResponse:
        fields = Fields(request)
        queue = fields.if_set("queue", queue_from_wire)
        constraint = fields("constraint", text_from_wire)
        fields.done()

        def show(unit: Unit, _: World) -> node_service_pb2.ListSlotsResponse:
            slots = list_slots(unit, queue, constraint, ads_wanted=request.ads_wanted)
            return node_service_pb2.ListSlotsResponse(slots=[slot_info_to_wire(each.info, each.ad) for each in slots])

        return await self._transactions.read(show)

    async def SetNodeAttributes(
        self, request: node_service_pb2.SetNodeAttributesRequest, context: Any
    ) -> node_service_pb2.SetNodeAttributesResponse:
        identity = caller()
        fields = Fields(request)
        nodes = fields("nodes", node_ids_from_wire)
        turn = fields.if_set("turn", turn_from_wire)
        fields.done()
        change = (dict(request.set), tuple(request.unset))

        def set_them(unit: Unit, world: World) -> node_service_pb2.SetNodeAttributesResponse:
            hold_turn(unit, turn)
            agent = turn.agent if turn is not None else ""
            changed = set_node_attributes(unit, world, identity, nodes, change, agent)
            return node_service_pb2.SetNodeAttributesResponse(nodes=map(node_settings_to_wire, changed))

        return await self._transactions.once(
            identity, "SetNodeAttributes", request, node_service_pb2.SetNodeAttributesResponse, set_them
        )

    async def ListNodeAttributes(
        self, request: node_service_pb2.ListNodeAttributesRequest, context: Any
    ) -> node_service_pb2.ListNodeAttributesResponse:
        fields = Fields(request)
        nodes = fields("nodes", node_ids_from_wire)
        fields.done()

        def show(unit: Unit, _: World) -> node_service_pb2.ListNodeAttributesResponse:
            return node_service_pb2.ListNodeAttributesResponse(
                nodes=map(node_settings_to_wire, list_node_attributes(unit, nodes))
            )

        return await self._transactions.read(show)

    async def GetNodeUse(
        self, request: node_service_pb2.GetNodeUseRequest, context: Any
    ) -> node_service_pb2.GetNodeUseResponse:
        fields = Fields(request)
        attribute = fields("attribute", name_from_wire)
        fields("queues", not_too_many)
        queues = fields("queues", lambda queues: each(queues, queue_from_wire))
        fields.done()
        return await self._transactions.read(
            lambda unit, world: farm_use_to_wire(get_node_use(unit, world, queues, attribute))
        )
