"""A connection to a server: one channel, a stub for each service, and how it is found, opened and closed."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Self

from pilotage.channel import Endpoint, open_channel
from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub
from pilotage.v1.race_service_pb2_grpc import RaceServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.v1.share_service_pb2_grpc import ShareServiceStub
from pilotage_client.location import Location, Wishes, locate


class Connection:
    """A channel to `server` ("host:port", comma between several) in the name of one token."""

    def __init__(self, server: str, token: str) -> None:
        self.server = server
        self._channel = open_channel(Endpoint.parse(server, token=token))
        self._jobs = JobServiceStub(self._channel)
        self._pools = PoolServiceStub(self._channel)
        self._resources = ResourceServiceStub(self._channel)
        self._pilots = PilotServiceStub(self._channel)
        self._nodes = NodeServiceStub(self._channel)
        self._races = RaceServiceStub(self._channel)
        self._routes = RouteServiceStub(self._channel)
        self._shares = ShareServiceStub(self._channel)
        self._identity = IdentityServiceStub(self._channel)

    @classmethod
    def located(cls, wishes: Wishes | None = None) -> Self:
        """Connect to the server that the wishes, the environment or the data folder name."""
        found: Location = locate(wishes or Wishes())
        return cls(found.server, found.token)

    def __enter__(self) -> Self:
        """Return the connection itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def new_request_id() -> str:
    """Return a new id that makes a repeated request have one effect."""
    return secrets.token_hex(16)
