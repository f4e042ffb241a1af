"""Turns of agents over the wire: who may ask, what is refused with its place, and what is refused out of turn."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from pilotage.errors import InvalidInputError, LeadershipLostError, PermissionDeniedError
from pilotage.v1.agent_service_pb2 import GiveBackTurnRequest, TakeTurnRequest
from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
from pilotage.v1.node_service_pb2 import NodeId, SetNodeAttributesRequest
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2 import RegisterPilotsRequest
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.values_pb2 import QueueId, Turn
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id, shared_server

__all__ = ["shared_server"]


@pytest.fixture
def channel(shared_server: RunningServer) -> Iterator[grpc.Channel]:
    with shared_server.channel(shared_server.token(Role.AGENT, owner="agent:test")) as opened:
        yield opened


def take(channel: grpc.Channel, turn: Turn, for_s: float = 30.0) -> bool:
    request = TakeTurnRequest(turn=turn, for_s=for_s, place=f"the host of {turn.holder}")
    return AgentServiceStub(channel).TakeTurn(request).taken


def test_a_turn_is_taken_refused_to_others_and_given_back(channel: grpc.Channel) -> None:
    a, b = Turn(agent="wire", holder="a"), Turn(agent="wire", holder="b")
    assert take(channel, a)
    answer = AgentServiceStub(channel).TakeTurn(TakeTurnRequest(turn=b, for_s=30))
    assert (answer.taken, answer.place) == (False, "the host of a")
    assert 0 < answer.left_s <= 30
    AgentServiceStub(channel).GiveBackTurn(GiveBackTurnRequest(turn=a))
    assert take(channel, b)


@pytest.mark.parametrize(
    ("request_", "places"),
    [
        (TakeTurnRequest(), ["turn.agent", "turn.holder", "for_s"]),
        (TakeTurnRequest(turn=Turn(agent="x" * 501, holder="y" * 65), for_s=10), ["turn.agent", "turn.holder"]),
        (TakeTurnRequest(turn=Turn(agent="x", holder="y\n"), for_s=3601), ["turn.holder", "for_s"]),
        (TakeTurnRequest(turn=Turn(agent="x", holder="y"), for_s=float("nan")), ["for_s"]),
    ],
)
def test_a_faulty_request_is_refused_with_every_place(
    channel: grpc.Channel, request_: TakeTurnRequest, places: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        AgentServiceStub(channel).TakeTurn(request_)
    assert [violation.where for violation in caught.value.violations] == places


def test_users_take_no_turns(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel, pytest.raises(PermissionDeniedError):
        take(channel, Turn(agent="x", holder="y"))


def test_pilots_are_registered_and_nodes_set_only_by_the_copy_whose_turn_it_is(channel: grpc.Channel) -> None:
    mine, others = Turn(agent="acting", holder="me"), Turn(agent="acting", holder="another")
    assert take(channel, others)
    register = RegisterPilotsRequest(
        request_id=request_id(), queue=QueueId(site="S", ce="C", queue="Q"), count=1, turn=mine
    )
    set_ = SetNodeAttributesRequest(
        request_id=request_id(), nodes=[NodeId(site="S", node="N")], set={"OnlyMulticore": "True"}, turn=mine
    )
    with pytest.raises(LeadershipLostError, match="acting"):
        PilotServiceStub(channel).RegisterPilots(register)
    with pytest.raises(LeadershipLostError):
        NodeServiceStub(channel).SetNodeAttributes(set_)
