"""AgentService: copies of agents take turns."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import agent_service_pb2, agent_service_pb2_grpc
from pilotage_server.operations.turns import give_back_turn, take_turn
from pilotage_server.operations.world import World
from pilotage_server.rpc.convert_turns import turn_answer_to_wire, turn_from_wire, turn_length_from_wire
from pilotage_server.rpc.convert_values import Fields, reason_from_wire
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit


class AgentServicer(agent_service_pb2_grpc.AgentServiceServicer):
    """Gives copies of agents their turns."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def TakeTurn(
        self, request: agent_service_pb2.TakeTurnRequest, context: Any
    ) -> agent_service_pb2.TakeTurnResponse:
        fields = Fields(request)
        turn = fields("turn", turn_from_wire)
        length = fields("for_s", turn_length_from_wire)
        place = fields("place", reason_from_wire)
        fields.done()

        def take(unit: Unit, _: World) -> agent_service_pb2.TakeTurnResponse:
            return turn_answer_to_wire(take_turn(unit, turn, length, place))

        return await self._transactions.write(take)

    async def GiveBackTurn(
        self, request: agent_service_pb2.GiveBackTurnRequest, context: Any
    ) -> agent_service_pb2.GiveBackTurnResponse:
        fields = Fields(request)
        turn = fields("turn", turn_from_wire)
        fields.done()
        await self._transactions.write(lambda unit, _: give_back_turn(unit, turn))
        return agent_service_pb2.GiveBackTurnResponse()
