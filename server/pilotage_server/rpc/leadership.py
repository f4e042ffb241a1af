"""AgentService: leadership among the replicas of an agent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import enum_to_wire, length_from_wire, text_from_wire, time_to_wire
from pilotage.v1 import agent_service_pb2, agent_service_pb2_grpc
from pilotage.values.leadership import NO_STATUS, ServedQueues
from pilotage.values.wire.fields import Fields, reason_from_wire
from pilotage.values.wire.leadership import (
    agent_status_from_wire,
    agent_status_to_wire,
    leadership_answer_to_wire,
    leadership_from_wire,
    leadership_to_wire,
)
from pilotage_server.core.identity import check_turn
from pilotage_server.core.leadership import AgentReplica, AgentState
from pilotage_server.operations.leadership import list_agents, release_leadership, take_leadership
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


def agent_replica_to_wire(replica: AgentReplica, state: AgentState) -> agent_service_pb2.AgentReplica:
    """Return the message of a replica of an agent."""
    return agent_service_pb2.AgentReplica(
        turn=leadership_to_wire(replica.leadership),
        state=enum_to_wire(agent_service_pb2.AgentState, state.name),
        place=replica.host,
        owner=replica.owner,
        queues=replica.serves.patterns,
        ce_types=replica.serves.ce_types,
        bounds=replica.bounds,
        since=time_to_wire(replica.since),
        last_seen=time_to_wire(replica.ended or replica.last_seen),
        status=agent_status_to_wire(replica.status),
    )


class AgentServicer(agent_service_pb2_grpc.AgentServiceServicer):
    """Grants and releases leadership, and lists the replicas of agents."""

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
        status = fields.if_set("status", agent_status_from_wire) or NO_STATUS
        sent = fields.time("sent")
        fields.done()
        identity = caller()
        check_turn(identity, leadership.agent)
        bounds = identity.bounds.queues

        def take(transaction: Transaction, _: ServerState) -> agent_service_pb2.TakeTurnResponse:
            known = status if sent is None else status.received(sent, transaction.now)
            answer = take_leadership(transaction, leadership, length, host, serves, bounds, known, identity.owner)
            return leadership_answer_to_wire(answer)

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

    async def ListAgents(
        self, request: agent_service_pb2.ListAgentsRequest, context: Any
    ) -> agent_service_pb2.ListAgentsResponse:
        found = await self._transactions.read(lambda transaction, _: list_agents(transaction))
        return agent_service_pb2.ListAgentsResponse(replicas=[agent_replica_to_wire(*each) for each in found])
