"""What is refused of calls about the use and the attributes of nodes, with its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.v1.node_service_pb2 import GetNodeUseRequest, NodeId, SetNodeAttributesRequest
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.values_pb2 import QueueId, Turn
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id, shared_server

__all__ = ["shared_server"]


@pytest.fixture
def nodes(shared_server: RunningServer) -> Iterator[NodeServiceStub]:
    with shared_server.channel(shared_server.token(Role.AGENT, owner="agent:test")) as channel:
        yield NodeServiceStub(channel)


def places(caught: pytest.ExceptionInfo[InvalidInputError]) -> list[str]:
    return [violation.where for violation in caught.value.violations]


def test_a_question_about_nodes_names_an_attribute_and_whole_queues(nodes: NodeServiceStub) -> None:
    with pytest.raises(InvalidInputError) as caught:
        nodes.GetNodeUse(GetNodeUseRequest(queues=[QueueId(site="S", ce="C", queue="Q"), QueueId(site="S", ce="C")]))
    assert places(caught) == ["attribute", "queues[1].queue"]


def test_no_call_sets_attributes_of_more_nodes_than_one_call_may_name(nodes: NodeServiceStub) -> None:
    many = [NodeId(site="S", node=f"n{number}") for number in range(10_001)]
    request = SetNodeAttributesRequest(request_id=request_id(), nodes=many, set={"A": "1"}, turn=Turn(agent="x"))
    with pytest.raises(InvalidInputError) as caught:
        nodes.SetNodeAttributes(request)
    assert places(caught) == ["nodes", "turn.holder"]


def test_users_do_not_see_the_use_of_nodes(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel, pytest.raises(PermissionDeniedError):
        NodeServiceStub(channel).GetNodeUse(GetNodeUseRequest(attribute="OnlyMulticore"))


def test_a_farm_without_nodes_has_none_and_nothing_waits_for_it(nodes: NodeServiceStub) -> None:
    answer = nodes.GetNodeUse(GetNodeUseRequest(attribute="OnlyMulticore"))
    assert (list(answer.nodes), list(answer.waiting)) == ([], [])
