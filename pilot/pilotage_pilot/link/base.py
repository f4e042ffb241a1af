"""The interfaces to the server and the broker, and what an error of a call means for the next attempt."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pilotage.errors import (
    OverloadedError,
    PermissionDeniedError,
    PilotageError,
    StateConflictError,
    UnauthenticatedError,
    WorldError,
)
from pilotage.job_description import NOTHING, Value
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import TailStream
from pilotage.values.isolation import Isolation
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import BrokerEvent, HeartbeatAnswered, JobsGranted, PoolsRead
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, Slot


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The constant properties of a node and its pilot; `ends` None = unknown."""

    name: str
    amounts: Amounts
    cpu_power: float = 1.0
    ends: datetime | None = None
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)
    pilot_version: str = ""
    isolation: Isolation = Isolation.NONE


class FileLink(Protocol):
    """Transfers files and output from and to the server; all methods raise PilotageError."""

    def download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        """Stream an input file of a job."""

    async def upload(self, path: Path, checksum: str, size: int) -> None:
        """Upload the first `size` bytes of a file, which have this checksum."""

    async def post_tail(self, stream: TailStream, offset: int, content: bytes) -> bool:
        """Send new output of a running attempt, `offset` bytes after its start; returns whether to go on."""


class PilotServerLink(FileLink, Protocol):
    """Calls of the server: each has a deadline, is tried once, and raises PilotageError when it fails."""

    async def request_jobs(self, call: RequestJobs) -> JobsGranted:
        """Request jobs; takes slightly longer than `call.wait_s` at most."""

    async def beat(self, call: SendHeartbeat, node: NodeDescription) -> HeartbeatAnswered:
        """Send a heartbeat; `node` is sent with it if it reports the slots."""

    async def read_pools(self) -> PoolsRead:
        """Return the pools of the pilot's queue."""

    async def close(self) -> None:
        """Close the connection."""


class MqttPublisher(Protocol):
    """Publishes to a broker: messages are sent when possible and never block the pilot."""

    def connected(self, publish: Callable[[BrokerEvent], None]) -> AbstractAsyncContextManager[None]:
        """Keep the connection during the block, and call `publish` for each event.

        At its end the node is removed from the broker; after an error it is published as lost.
        """

    def subscribe_pools(self, pool_ids: Iterable[str]) -> None:
        """Subscribe to jobs of these pools and to jobs without a pool."""

    def publish_slots(self, slots: Iterable[Slot], *, draining: bool) -> None:
        """Publish the state of the slots."""


def failure_of(error: PilotageError) -> ev.Failure:
    """Return the failure that an error means for the core."""
    jitter = random.random()  # noqa: S311 - spreads retries, guards nothing
    match error:
        case UnauthenticatedError() | PermissionDeniedError():
            return ev.Failure(ev.FailureKind.CREDENTIAL, str(error), jitter)
        case OverloadedError(retry_after_s=least_s):
            return ev.Failure(ev.FailureKind.TRANSIENT, str(error), jitter, least_s)
        case WorldError() | StateConflictError():
            return ev.Failure(ev.FailureKind.TRANSIENT, str(error), jitter)
        case _:
            return ev.Failure(ev.FailureKind.REFUSED, str(error), jitter)
