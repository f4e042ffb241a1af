"""Leadership of agents over the wire: permissions, checks, and calls without leadership."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from pilotage import clock
from pilotage.errors import InvalidInputError, LeadershipLostError, PermissionDeniedError
from pilotage.rpc.wire import time_from_wire
from pilotage.v1.agent_service_pb2 import GiveBackTurnRequest, ListAgentsRequest, TakeTurnRequest
from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
from pilotage.v1.node_service_pb2 import NodeId, SetNodeAttributesRequest
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2 import RegisterPilotsRequest
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.values_pb2 import QueueId, Turn
from pilotage_server.core.identity import AGENT_NAMES, Role
from support.server import RunningServer, request_id


@pytest.fixture
def channel(shared_server: RunningServer) -> Iterator[grpc.Channel]:
    with shared_server.channel(shared_server.token(*AGENT_NAMES, owner="agent:test")) as opened:
        yield opened


def take_leadership(channel: grpc.Channel, turn: Turn, for_s: float = 30.0) -> bool:
    request = TakeTurnRequest(turn=turn, for_s=for_s, place=f"the host of {turn.holder}")
    return AgentServiceStub(channel).TakeTurn(request).taken


def test_leadership_is_taken_exclusively_and_given_back(channel: grpc.Channel) -> None:
    a, b = Turn(agent="racer of wire", holder="a"), Turn(agent="racer of wire", holder="b")
    assert take_leadership(channel, a)
    answer = AgentServiceStub(channel).TakeTurn(TakeTurnRequest(turn=b, for_s=30))
    assert (answer.taken, answer.place) == (False, "the host of a")
    assert 0 < answer.left_s <= 30
    AgentServiceStub(channel).GiveBackTurn(GiveBackTurnRequest(turn=a))
    assert take_leadership(channel, b)


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (TakeTurnRequest(), ["turn.agent", "turn.holder", "for_s"]),
        (TakeTurnRequest(turn=Turn(agent="x" * 501, holder="y" * 65), for_s=10), ["turn.agent", "turn.holder"]),
        (TakeTurnRequest(turn=Turn(agent="x", holder="y\n"), for_s=3601), ["turn.holder", "for_s"]),
        (TakeTurnRequest(turn=Turn(agent="x", holder="y"), for_s=float("nan")), ["for_s"]),
    ],
)
def test_invalid_request_is_rejected_with_all_fields(
    channel: grpc.Channel, request_: TakeTurnRequest, fields: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        AgentServiceStub(channel).TakeTurn(request_)
    assert [violation.where for violation in caught.value.violations] == fields


@pytest.mark.parametrize("error", [timedelta(0), timedelta(hours=-3), timedelta(days=365_000)], ids=str)
def test_reported_times_are_those_of_the_server(
    shared_server: RunningServer, channel: grpc.Channel, error: timedelta
) -> None:
    turn = Turn(agent=f"racer of a clock that is wrong by {error}", holder="a")
    request, sent = TakeTurnRequest(turn=turn, for_s=30), clock.now() + error
    request.sent.FromDatetime(sent)
    request.status.last_success.FromDatetime(sent - timedelta(minutes=10))
    request.status.last_error_time.FromDatetime(sent + timedelta(minutes=1))  # its clock was set meanwhile
    request.status.last_cycle.FromDatetime(datetime.min.replace(tzinfo=UTC))
    before = clock.now()
    AgentServiceStub(channel).TakeTurn(request)
    with shared_server.channel(shared_server.token(Role.OPERATOR)) as operator:
        replicas = AgentServiceStub(operator).ListAgents(ListAgentsRequest()).replicas
    (status,) = (each.status for each in replicas if each.turn == turn)
    after = clock.now()
    assert before <= time_from_wire(status.last_success) + timedelta(minutes=10) <= after
    assert before <= time_from_wire(status.last_error_time) <= after
    assert time_from_wire(status.last_cycle) < before


def test_users_take_no_leadership(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel, pytest.raises(PermissionDeniedError):
        take_leadership(channel, Turn(agent="x", holder="y"))


def test_only_the_leader_registers_pilots_and_sets_nodes(channel: grpc.Channel) -> None:
    mine, others = (Turn(agent="site director of acting", holder=holder) for holder in ("me", "another"))
    assert take_leadership(channel, others)
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
