"""A process that answers in the place of the servers: it sends each call to them twice, or once more much later.

It knows the methods, not the messages. Usage: python -m chaos.duplicator CERTIFICATE KEY PORT DIRECT-ADDRESS...
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from pilotage.rpc.channel import SHARED_OPTIONS
from pilotage.v1 import (
    agent_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    resource_service_pb2,
)

_FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        agent_service_pb2,
        identity_service_pb2,
        job_service_pb2,
        matcher_service_pb2,
        node_service_pb2,
        pilot_service_pb2,
        pool_service_pb2,
        resource_service_pb2,
    )
)
_LONGEST_DELAY_S = 1.5
_LATEST_S = 12.0  # later than the end of a lease
_COPY_TIMEOUT_S = 70.0  # longer than a long poll

Metadata = tuple[tuple[str, Any], ...]


class Duplicator(grpc.GenericRpcHandler):
    """Passes calls on over `channels`, one per server."""

    def __init__(self, channels: list[Any]) -> None:
        self._channels = channels
        self._copies: set[asyncio.Task[Any]] = set()
        self._methods = {
            f"/{service.full_name}/{method.name}": method
            for file in _FILES
            for service in file.services_by_name.values()
            for method in service.methods
        }

    def service(self, details: Any) -> Any:
        """Return the handler of a method; None = it is unknown."""
        method: MethodDescriptor | None = self._methods.get(details.method)
        if method is None:
            return None
        name = details.method
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(partial(self._pass_responses, name))
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(partial(self._pass_requests, name))
        return grpc.unary_unary_rpc_method_handler(partial(self._repeat, name))

    async def _repeat(self, method: str, request: bytes, context: Any) -> bytes:
        """Send the request to two servers, and at times once more late; one of the first two answers is returned."""
        metadata = _metadata(context)
        channels = random.sample(self._channels, len(self._channels))
        delays = [0.0, random.uniform(0, _LONGEST_DELAY_S)]
        if random.random() < 0.5:
            delays.append(random.uniform(_LONGEST_DELAY_S, _LATEST_S))
        copies = [
            self._start(self._send(channels[number % len(channels)], method, request, metadata, delay_s))
            for number, delay_s in enumerate(delays)
        ]
        return await _answered(asyncio.shield(random.choice(copies[:2])), context)

    def _start(self, copy: Awaitable[bytes]) -> asyncio.Task[bytes]:
        """Run a copy, which outlives the call; its failure is no concern of anyone unless its answer is chosen."""
        task = asyncio.ensure_future(copy)
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _send(self, channel: Any, method: str, request: bytes, metadata: Metadata, delay_s: float) -> bytes:
        await asyncio.sleep(delay_s)
        answer: bytes = await channel.unary_unary(method)(request, metadata=metadata, timeout=_COPY_TIMEOUT_S)
        return answer

    async def _pass_responses(self, method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        call = random.choice(self._channels).unary_stream(method)(request, metadata=_metadata(context))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))

    async def _pass_requests(self, method: str, requests: AsyncIterator[bytes], context: Any) -> bytes:
        call = random.choice(self._channels).stream_unary(method)(requests, metadata=_metadata(context))
        return await _answered(call, context)


async def _answered(answer: Awaitable[bytes], context: Any) -> bytes:
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
        raise


def _metadata(context: Any) -> Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() if key != "user-agent")


async def main(certificate: str, key: str, port: str, *addresses: str) -> None:
    """Serve until the end of the process."""
    chain = await asyncio.to_thread(Path(certificate).read_bytes)
    private_key = await asyncio.to_thread(Path(key).read_bytes)
    credentials = grpc.ssl_channel_credentials(chain)
    channels: list[Any] = [grpc.aio.secure_channel(address, credentials, SHARED_OPTIONS) for address in addresses]
    server = grpc.aio.server(options=SHARED_OPTIONS)
    server.add_generic_rpc_handlers((Duplicator(channels),))
    server.add_secure_port(f"0.0.0.0:{port}", grpc.ssl_server_credentials([(private_key, chain)]))
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
