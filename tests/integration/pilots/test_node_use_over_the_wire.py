"""Checks of the calls for node use and node attributes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.v1.node_service_pb2 import GetNodeUseRequest, NodeId, SetNodeAttributesRequest
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.values_pb2 import QueueId, Turn
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id


@pytest.fixture
def nodes(shared_server: RunningServer) -> Iterator[NodeServiceStub]:
    with shared_server.channel(shared_server.token(Role.DRAINER, owner="agent:test")) as channel:
        yield NodeServiceStub(channel)


def fields_of(caught: pytest.ExceptionInfo[InvalidInputError]) -> list[str]:
    return [violation.where for violation in caught.value.violations]


def test_node_use_needs_an_attribute_and_complete_queues(nodes: NodeServiceStub) -> None:
    with pytest.raises(InvalidInputError) as caught:
        nodes.GetNodeUse(GetNodeUseRequest(queues=[QueueId(site="S", ce="C", queue="Q"), QueueId(site="S", ce="C")]))
    assert fields_of(caught) == ["attribute", "queues[1].queue"]


def test_attributes_of_too_many_nodes_are_rejected(nodes: NodeServiceStub) -> None:
    many = [NodeId(site="S", node=f"n{number}") for number in range(10_001)]
    request = SetNodeAttributesRequest(request_id=request_id(), nodes=many, set={"A": "1"}, turn=Turn(agent="x"))
    with pytest.raises(InvalidInputError) as caught:
        nodes.SetNodeAttributes(request)
    assert fields_of(caught) == ["nodes", "turn.holder"]


def test_users_may_not_read_node_use(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel, pytest.raises(PermissionDeniedError):
        NodeServiceStub(channel).GetNodeUse(GetNodeUseRequest(attribute="OnlyMulticore"))


def test_node_use_without_nodes_is_empty(nodes: NodeServiceStub) -> None:
    answer = nodes.GetNodeUse(GetNodeUseRequest(attribute="OnlyMulticore"))
    assert (list(answer.nodes), list(answer.waiting)) == ([], [])
