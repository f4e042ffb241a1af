"""Client channels to a running server: several addresses, changing tokens and deadlines."""

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

WHO_AM_I = identity_service_pb2.WhoAmIRequest()


@pytest.mark.parametrize(
    "unreachable",
    [["127.0.0.1:1"], ["localhost:1"], ["[::1]:1", "[::1]:2"], ["127.0.0.1:1", "[::1]:2"]],
    ids=["IPv4", "host name", "IPv6", "IPv4 and IPv6"],
)
def test_first_reachable_address_is_used(shared_server: RunningServer, unreachable: list[str]) -> None:
    endpoint = Endpoint((*unreachable, shared_server.address), shared_server.token())

    with open_channel(endpoint) as channel:
        assert identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(WHO_AM_I).owner == "alice"


def test_token_is_read_for_every_call(shared_server: RunningServer) -> None:
    tokens = iter([shared_server.token(owner="first"), shared_server.token(owner="second")])

    with open_channel(Endpoint((shared_server.address,), lambda: next(tokens))) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        assert [stub.WhoAmI(WHO_AM_I).owner, stub.WhoAmI(WHO_AM_I).owner] == ["first", "second"]


def test_refused_connection_fails_fast_with_its_reason() -> None:
    address = free_address()
    started = clock.boot_time_s()
    with open_channel(Endpoint((address,))) as channel, pytest.raises(ServerUnreachableError) as caught:
        identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(WHO_AM_I)

    assert str(caught.value) == f"no server answers at {address}: Connection refused"
    assert timedelta(seconds=clock.boot_time_s() - started) < timedelta(seconds=10)


def test_silent_server_is_unreachable_after_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = Endpoint((f"127.0.0.1:{silent.getsockname()[1]}",))
        started = clock.boot_time_s()
        with open_channel(endpoint, timeout_s=0.5) as channel, pytest.raises(ServerUnreachableError):
            identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(WHO_AM_I)

    assert timedelta(seconds=clock.boot_time_s() - started) < timedelta(seconds=10)


async def test_async_channel_raises_the_same_errors(shared_server: RunningServer) -> None:
    async with open_async_channel(Endpoint((shared_server.address,), "broken")) as channel:
        stub: identity_service_pb2_grpc.IdentityServiceAsyncStub
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        with pytest.raises(UnauthenticatedError):
            await stub.WhoAmI(WHO_AM_I)
