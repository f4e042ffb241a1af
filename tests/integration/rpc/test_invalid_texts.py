"""Texts that a database cannot store, in every text field of every call, are an error of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pilotage.errors import InvalidInputError, PilotageError
from pilotage.rpc.proof import BoundToken
from pilotage.v1 import (
    agent_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
from pilotage_server.core.identity import Role
from support.server import RunningServer
from support.wire_grid import WireGrid

pytestmark = pytest.mark.process

FILES = (
    agent_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
MARK = "MARKED"
INVALID = {"nul": b"MAR\0ED", "surrogate": b"MA\xed\xa0\x80D"}
"""Texts of the length of the mark, so that a message stays readable around them."""
DEEPEST = 4
FAULTS_OF_THE_SERVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE}


def methods() -> Iterator[MethodDescriptor]:
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (each for each in service.methods if not (each.client_streaming or each.server_streaming))


def text_paths(descriptor: Descriptor, depth: int = DEEPEST) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the path to each text field."""
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (field,)
        elif field.message_type is not None and depth:
            entry = field.message_type
            is_map = entry.GetOptions().map_entry
            inner = entry.fields_by_name["value"] if is_map else None
            if inner is None:
                yield from ((field, *path) for path in text_paths(entry, depth - 1))
            elif inner.type == FieldDescriptor.TYPE_STRING:
                yield (field, inner)


def put_mark(message: Message, path: tuple[FieldDescriptor, ...]) -> None:
    """Fill the texts of a message and put the mark at the end of the path."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated and field.containing_oneof is None:
            setattr(message, field.name, "text")
    first, *rest = path
    if not rest and first.is_repeated:
        getattr(message, first.name).append(MARK)
    elif not rest:
        setattr(message, first.name, MARK)
    elif first.message_type is not None and first.message_type.GetOptions().map_entry:
        getattr(message, first.name)[MARK] = "text"
    else:
        inner = getattr(message, first.name)
        put_mark(inner.add() if first.is_repeated else inner, tuple(rest))


def _code(error: PilotageError) -> grpc.StatusCode:
    cause = error.__cause__
    assert isinstance(cause, grpc.RpcError)
    code: grpc.StatusCode = cause.code()
    return code


@pytest.mark.parametrize("kind", INVALID)
def test_no_invalid_text_is_a_fault_of_the_server(grid: WireGrid, shared_server: RunningServer, kind: str) -> None:
    agents = (Role.DIRECTOR, Role.ROUTER, Role.DRAINER, Role.CLEANER, Role.RACER)
    tokens: list[str | BoundToken] = [shared_server.token(Role.ADMIN, Role.OPERATOR, Role.USER)]
    tokens += [shared_server.token(*agents), grid.start_pilot().token]
    failed: list[str] = []
    for token in tokens:
        with shared_server.channel(token, timeout_s=20) as channel:
            for method in methods():
                call: Any = channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
                for path in text_paths(method.input_type):
                    message = GetMessageClass(method.input_type)()
                    put_mark(message, path)
                    try:
                        call(message.SerializeToString().replace(MARK.encode(), INVALID[kind]))
                    except PilotageError as error:
                        if _code(error) in FAULTS_OF_THE_SERVER:
                            failed.append(f"{method.name} {'.'.join(field.name for field in path)}: {error}")
    assert not failed


def test_reason_with_a_nul_is_an_invalid_argument(grid: WireGrid, shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.OPERATOR)) as channel:
        request = resource_service_pb2.HoldPlaceRequest(
            request_id="1", place=resource_service_pb2.Place(site="SITE"), reason="no\0"
        )
        call: Any = channel.unary_unary("/pilotage.v1.ResourceService/HoldPlace")
        with pytest.raises(InvalidInputError, match="reason: holds a NUL character"):
            call(request.SerializeToString())
