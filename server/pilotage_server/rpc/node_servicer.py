"""NodeService: nodes and slots as their pilots report them."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import node_service_pb2, node_service_pb2_grpc
from pilotage.wire import queue_from_wire
from pilotage_server.operations.slots import list_slots
from pilotage_server.rpc.convert_pilots import slot_info_to_wire
from pilotage_server.rpc.convert_values import Fields
from pilotage_server.rpc.transactions import Transactions


class NodeServicer(node_service_pb2_grpc.NodeServiceServicer):
    """Shows nodes and slots."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListSlots(
        self, request: node_service_pb2.ListSlotsRequest, context: Any
    ) -> node_service_pb2.ListSlotsResponse:
        fields = Fields(request)
        queue = fields.if_set("queue", queue_from_wire)
        fields.done()

        def show(unit: Any, _: Any) -> node_service_pb2.ListSlotsResponse:
            slots = list_slots(unit, queue)
            return node_service_pb2.ListSlotsResponse(slots=[slot_info_to_wire(slot) for slot in slots])

        return await self._transactions.read(show)
