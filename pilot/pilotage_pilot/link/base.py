"""The edge to the server: what the pilot's shell asks of it, in the words of the core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pilotage.job_description import NOTHING, Value
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.events import HeartbeatAnswered, JobsGranted, PoolsRead
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What does not change about a node while its pilot lives; `ends` None = no end is known."""

    name: str
    amounts: Amounts
    cpu_power: float = 1.0
    ends: datetime | None = None
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)
    pilot_version: str = ""


class FileLink(Protocol):
    """The way of files to and from the server; both raise PilotageError."""

    def download(self, job_id: int, checksum: str) -> AsyncIterator[bytes]:
        """Stream a file that a job brought."""

    async def upload(self, path: Path, checksum: str, size: int) -> None:
        """Bring the first `size` bytes of a file, which have this checksum."""


class ServerLink(FileLink, Protocol):
    """The way to the server; every call has a deadline, is made once, and raises PilotageError when it fails."""

    async def request_jobs(self, call: RequestJobs) -> JobsGranted:
        """Ask for jobs; takes up to `call.wait_s` and a little longer."""

    async def beat(self, call: SendHeartbeat, node: NodeFacts) -> HeartbeatAnswered:
        """Send a heartbeat; `node` goes with it where it tells of the slots."""

    async def read_pools(self) -> PoolsRead:
        """Ask for the pools of the pilot's queue."""

    async def close(self) -> None:
        """Hang up."""
