"""A server that takes the same calls in three ways: without tokens, with tokens and proofs, and with TLS beside them.

It is `pilotage_server.main` with two changes. It listens without TLS at the address of its settings, and with TLS at
`TLS_ADDRESS`. A call with `PILOT_HEADER` and no token is served as that pilot if an earlier call had both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import grpc

from pilotage_server import app
from pilotage_server.main import main
from pilotage_server.rpc import server as rpc_server
from pilotage_server.rpc.framework.dispatch import CallAccess
from pilotage_server.rpc.framework.tokens import VerifiedToken

PILOT_HEADER = "bench-pilot"
TLS_ADDRESS = "PILOTAGE_BENCH_TLS_ADDRESS"
"""The environment variable with the address of the port with TLS."""


class _OpenAccess(CallAccess):
    """The access check; it knows the pilots that have passed it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._known: dict[object, VerifiedToken] = {}

    def authorize(self, method: str, metadata: Mapping[str, Any]) -> VerifiedToken:
        pilot = metadata.get(PILOT_HEADER)
        if pilot is None:
            return super().authorize(method, metadata)
        known = self._known.get(pilot)
        if known is None:
            known = self._known[pilot] = super().authorize(method, metadata)
        return known


class _TwoPortServer(rpc_server.RpcServer):
    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        super().listen(os.environ[TLS_ADDRESS], credentials)
        return super().listen(address, None)


if __name__ == "__main__":
    vars(rpc_server)["CallAccess"] = _OpenAccess
    vars(app)["RpcServer"] = _TwoPortServer
    sys.exit(main())
