"""Channels to a real server: several addresses, tokens that change, calls that repeat themselves."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from pilotage import clock
from pilotage.errors import ServerUnreachableError, UnauthenticatedError
from pilotage.rpc.channel import Endpoint, open_async_channel, open_channel
from pilotage.v1 import identity_service_pb2, identity_service_pb2_grpc
from support.processes import free_address
from support.server import RunningServer

ASK = identity_service_pb2.WhoAmIRequest()


def test_the_second_address_serves_when_the_first_does_not(shared_server: RunningServer) -> None:
    endpoint = Endpoint((free_address(), shared_server.address), shared_server.token())

    with open_channel(endpoint) as channel:
        assert identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(ASK).owner == "alice"


def test_a_name_may_stand_among_the_addresses(shared_server: RunningServer) -> None:
    endpoint = Endpoint(("localhost:1", shared_server.address), shared_server.token())

    with open_channel(endpoint) as channel:
        assert identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(ASK).owner == "alice"


@pytest.mark.parametrize("first", ["[::1]:1", "127.0.0.1:1"])
def test_addresses_of_both_families_stand_side_by_side(shared_server: RunningServer, first: str) -> None:
    endpoint = Endpoint((first, "[::1]:2", shared_server.address), shared_server.token())

    with open_channel(endpoint) as channel:
        assert identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(ASK).owner == "alice"


def test_a_token_that_is_renewed_is_asked_for_at_every_call(shared_server: RunningServer) -> None:
    tokens = iter([shared_server.token(owner="first"), shared_server.token(owner="second")])

    with open_channel(Endpoint((shared_server.address,), lambda: next(tokens))) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        assert [stub.WhoAmI(ASK).owner, stub.WhoAmI(ASK).owner] == ["first", "second"]


def test_where_nobody_listens_is_said_soon_and_clearly() -> None:
    address = free_address()
    started = clock.boot_time_s()
    with open_channel(Endpoint((address,))) as channel, pytest.raises(ServerUnreachableError) as unreachable:
        identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(ASK)

    assert str(unreachable.value) == f"no server answers at {address}: Connection refused"
    assert timedelta(seconds=clock.boot_time_s() - started) < timedelta(seconds=10)


def test_a_server_that_never_answers_is_given_up_at_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = Endpoint((f"127.0.0.1:{silent.getsockname()[1]}",))
        started = clock.boot_time_s()
        with open_channel(endpoint, timeout_s=0.5) as channel, pytest.raises(ServerUnreachableError):
            identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(ASK)

    assert timedelta(seconds=clock.boot_time_s() - started) < timedelta(seconds=10)


async def test_the_event_loops_channel_raises_the_same_errors(shared_server: RunningServer) -> None:
    async with open_async_channel(Endpoint((shared_server.address,), "broken")) as channel:
        stub: identity_service_pb2_grpc.IdentityServiceAsyncStub
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        with pytest.raises(UnauthenticatedError):
            await stub.WhoAmI(ASK)
