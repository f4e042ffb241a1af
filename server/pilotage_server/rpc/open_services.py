"""What anyone may ask without a token: whether the server serves, and which services it has."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

ASKERS = 4
"""Threads of each open service; more who ask at the same time wait for their turn."""


class Health(health.HealthServicer):  # type: ignore[misc]
    """Says of each service whether it is served."""

    def serves(self, services: Iterable[str]) -> None:
        """Say so of these, and of the server as a whole."""
        for name in ("", *services):
            self.set(name, health_pb2.HealthCheckResponse.SERVING)

    def add_to(self, server: grpc.Server) -> None:
        """Let the server answer health checks."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]
    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        return super().ServerReflectionInfo(request_iterator, context)

    # who leaves a question open keeps a thread: it must not be one that answers health checks
    ServerReflectionInfo.experimental_thread_pool = ThreadPoolExecutor(  # type: ignore[attr-defined]
        ASKERS, thread_name_prefix="reflection"
    )


def reflect(server: grpc.Server, services: Iterable[str]) -> None:
    """Let the server describe these services, and the open ones."""
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names), server)
