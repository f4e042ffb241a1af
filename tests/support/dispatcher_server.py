"""A gRPC server whose dispatcher serves the functions of a test as methods of the job service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pilotage import clock
from pilotage.clock import Clock
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage_server.core.identity import Identity, Role
from pilotage_server.core.revocations import NO_REVOCATIONS
from pilotage_server.rpc.framework.admission import Admission, CallLimits, CallQuota
from pilotage_server.rpc.framework.calls import Call, hot
from pilotage_server.rpc.framework.dispatch import STALLED_S, CallAccess, Dispatcher, LoopCalls
from pilotage_server.rpc.framework.grpc_calls import CallAcceptor
from pilotage_server.rpc.framework.key_files import KeySet, signing_key
from pilotage_server.rpc.framework.proofs import PilotProofs
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier

SERVICE = "pilotage.v1.JobService"
COROUTINE = f"/{SERVICE}/GetJobs"
STREAM = f"/{SERVICE}/WatchEvents"
UPLOAD = f"/{SERVICE}/UploadFile"
HOT = f"/{SERVICE}/SubmitJobs"
CODERS = (bytes, bytes)


@asynccontextmanager
async def served_methods(
    *,
    let_in: bool = True,
    most: int = 1000,
    most_of_owner: int = 1000,
    now: Clock = clock.now,
    stalled_s: float = STALLED_S,
    **methods: grpc.RpcMethodHandler[Any, Any],
) -> AsyncIterator[Any]:
    """Serve these methods of the job service, at most `most` at a time; yields a channel of one owner to them."""
    issuer = TokenIssuer(KeySet([signing_key(Ed25519PrivateKey.generate())]))
    token = issuer.issue(Identity("alice", "sky", (), frozenset({Role.USER})), timedelta(hours=1), clock.now())
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    verifier, proofs = TokenVerifier([issuer.trusted()]), PilotProofs(issuer, timedelta(minutes=1))
    access = CallAccess(verifier, lambda: NO_REVOCATIONS, proofs, now)
    async with asyncio.TaskGroup() as tasks:
        admission = Admission(CallLimits(most, owner=CallQuota(most_of_owner, 1000)), clock.boot_time_s)
        loop_calls = LoopCalls(tasks, access.recheck, stalled_s)
        dispatcher = Dispatcher(CallAcceptor(server), access, loop_calls, admission, clock.boot_time_s)
        dispatcher.add_registered_method_handlers(SERVICE, methods)
        dispatcher.open()
        channel = open_async_channel(Endpoint((f"127.0.0.1:{port}",), token if let_in else ""))
        try:
            yield channel
        finally:
            await channel.close()
            await asyncio.to_thread(server.stop(None).wait)


def hot_method(submit: Callable[[bytes, Call[bytes]], None]) -> Mapping[str, Any]:
    """Return `SubmitJobs` as a hot method that calls `submit`."""

    @hot
    def serve(request: bytes, call: Call[bytes]) -> None:
        submit(request, call)

    return {"SubmitJobs": grpc.unary_unary_rpc_method_handler(serve, *CODERS)}
