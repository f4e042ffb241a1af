"""AgentService: leadership among the replicas of an agent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import length_from_wire, text_from_wire
from pilotage.v1 import agent_service_pb2, agent_service_pb2_grpc
from pilotage.values.leadership import UNKNOWN_CONDITION, ServedQueues
from pilotage.values.wire.fields import Fields, reason_from_wire
from pilotage.values.wire.leadership import condition_from_wire, leadership_answer_to_wire, leadership_from_wire
from pilotage_server.core.identity import check_turn
from pilotage_server.operations.leadership import release_leadership, take_leadership
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.database.transaction import Transaction

_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(hours=1)
_MOST_TEXTS = 10_000


def leadership_length_from_wire(seconds: float) -> timedelta:
    """Return the wanted length of a leadership."""
    length = length_from_wire(seconds)
    if not _SHORTEST <= length <= _LONGEST:
        raise InvalidInputError(Violation("", f"is {seconds:g}; a turn lasts 1 to 3600 s"))
    return length


def _texts_from_wire(texts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(map(text_from_wire, texts))
    if len(found) > _MOST_TEXTS:
        raise InvalidInputError(Violation("", f"are {len(found)}; at most {_MOST_TEXTS} are read"))
    return found


class AgentServicer(agent_service_pb2_grpc.AgentServiceServicer):
    """Grants and releases leadership."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def TakeTurn(
        self, request: agent_service_pb2.TakeTurnRequest, context: Any
    ) -> agent_service_pb2.TakeTurnResponse:
        fields = Fields(request)
        leadership = fields("turn", leadership_from_wire)
        length = fields("for_s", leadership_length_from_wire)
        host = fields("place", reason_from_wire)
        serves = ServedQueues(fields("queues", _texts_from_wire), fields("ce_types", _texts_from_wire))
        condition = fields.if_set("condition", condition_from_wire) or UNKNOWN_CONDITION
        fields.done()
        identity = caller()
        check_turn(identity, leadership.agent)
        bounds = identity.bounds.queues

        def take(transaction: Transaction, _: ServerState) -> agent_service_pb2.TakeTurnResponse:
            return leadership_answer_to_wire(
                take_leadership(transaction, leadership, length, host, serves, bounds, condition)
            )

        return await self._transactions.write(take)

    async def GiveBackTurn(
        self, request: agent_service_pb2.GiveBackTurnRequest, context: Any
    ) -> agent_service_pb2.GiveBackTurnResponse:
        fields = Fields(request)
        leadership = fields("turn", leadership_from_wire)
        fields.done()
        check_turn(caller(), leadership.agent)
        await self._transactions.write(lambda transaction, _: release_leadership(transaction, leadership))
        return agent_service_pb2.GiveBackTurnResponse()
