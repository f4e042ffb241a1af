"""The edges to the server and to the broker: what the pilot's shell asks of them, in the words of the core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pilotage.job_description import NOTHING, Value
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.broker_events import BrokerEvent
from pilotage_pilot.core.events import HeartbeatAnswered, JobsGranted, PoolsRead
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat
from pilotage_pilot.core.slots import Slot


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


class Voice(Protocol):
    """The way to the broker: what is said there goes out when it can, and never holds anybody up."""

    def speaking(self, hear: Callable[[BrokerEvent], None]) -> AbstractAsyncContextManager[None]:
        """Keep the connection for the time of the block, and `hear` what comes.

        At its end the node is taken off the broker; where an error ends it, the node is told to be lost.
        """

    def know_pools(self, pool_ids: Iterable[str]) -> None:
        """Hear of jobs of these pools from now on, and of those without one."""

    def tell_slots(self, slots: Iterable[Slot], *, draining: bool) -> None:
        """Tell how the slots are."""
