"""The door before a service of any shape: errors, causes, incidents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from pilotage import clock
from pilotage.channel import Endpoint, open_async_channel
from pilotage.errors import LeaseLostError, WorldError
from pilotage.telemetry import cause_bound
from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.interceptors import Door, caller
from pilotage_server.rpc.tokens import TokenIssuer, TokenVerifier

Handler = Callable[[bytes, Any], Awaitable[bytes]]

UNARY = "/pilotage.v1.JobService/GetJobs"
STREAM = "/pilotage.v1.JobService/WatchEvents"
UPLOAD = "/pilotage.v1.JobService/UploadFile"
SECRET = "do not tell"


class OneService(grpc.GenericRpcHandler):
    """Every method does the same."""

    def __init__(self, act: Callable[[], bytes]) -> None:
        self._act = act

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def unary(_request: Any, _context: Any) -> bytes:
            return self._act()

        async def stream(_request: Any, _context: Any) -> AsyncIterator[bytes]:
            yield b"first"
            yield self._act()

        if handler_call_details.method == STREAM:
            return grpc.unary_stream_rpc_method_handler(stream)
        if handler_call_details.method == UPLOAD:
            return grpc.stream_unary_rpc_method_handler(unary)
        return grpc.unary_unary_rpc_method_handler(unary)


class Doorway:
    """A service behind a door, and a channel to it."""

    def __init__(self, act: Callable[[], bytes]) -> None:
        issuer = TokenIssuer(Ed25519PrivateKey.generate())
        door = Door(TokenVerifier([issuer.trusted()]), clock.now, clock.boot_time_s)
        self._server = grpc.aio.server(interceptors=[door])
        self._server.add_generic_rpc_handlers((OneService(act),))
        identity = Identity("alice", "sky", (), frozenset({Role.USER}))
        token = issuer.issue(identity, timedelta(hours=1), clock.now())
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._endpoint = Endpoint((f"127.0.0.1:{port}",), token)

    async def __aenter__(self) -> Any:
        await self._server.start()
        self._channel = open_async_channel(self._endpoint)
        return self._channel

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await self._server.stop(None)


def failing() -> bytes:
    raise ZeroDivisionError(SECRET)


def losing() -> bytes:
    raise LeaseLostError(7, 2, "it ran out")


async def upload_of(channel: Any) -> Any:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    return await channel.stream_unary(UPLOAD)(pieces())


@pytest.mark.parametrize("method", [UNARY, UPLOAD])
async def test_an_unforeseen_failure_is_an_incident_that_the_log_tells_of(method: str) -> None:
    with capture_logs() as logs:
        async with Doorway(failing) as channel:
            call = upload_of(channel) if method == UPLOAD else channel.unary_unary(method)(b"")
            with pytest.raises(WorldError) as failed:
                await call

    (line,) = [line for line in logs if line["event"] == "call failed"]
    assert line["incident"] in str(failed.value)
    assert SECRET not in str(failed.value)
    assert isinstance(line["exc_info"], ZeroDivisionError)
    assert not failed.value.transient


async def test_a_stream_that_fails_gives_what_it_had_and_then_the_error() -> None:
    async with Doorway(losing) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        assert await anext(messages) == b"first"
        with pytest.raises(LeaseLostError) as failed:
            await anext(messages)

    assert (failed.value.job_id, failed.value.attempt, failed.value.why) == (7, 2, "it ran out")


async def test_an_upload_that_is_refused_raises_the_servers_error() -> None:
    async with Doorway(losing) as channel:
        with pytest.raises(LeaseLostError):
            await upload_of(channel)


async def test_the_callers_cause_is_bound_where_the_call_is_served() -> None:
    causes: list[object] = []

    def act() -> bytes:
        causes.append(structlog.contextvars.get_contextvars().get("cause"))
        return caller().owner.encode()

    async with Doorway(act) as channel:
        with cause_bound("cause-4711"):
            assert await channel.unary_unary(UNARY)(b"") == b"alice"

    assert causes == ["cause-4711"]
