"""The edge to processes and files: what the pilot's shell needs of whoever runs the payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilotage.errors import PilotageError
from pilotage_pilot.core.events import LimitPassed, PayloadExited
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import AttemptKey, StoredFile

Happening = PayloadExited | LimitPassed
"""What happens to a payload by itself."""


class NodeAtFaultError(PilotageError):
    """The payload cannot be started through the pilot's or the node's fault; another place may do better."""


@dataclass(frozen=True, slots=True)
class PayloadTime:
    """The CPU seconds that the payload of an attempt has used so far, and the name of the slot that it is in."""

    key: AttemptKey
    slot: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What an attempt left: `files` travel in its report, `large`, by name, have to be brought to the server before."""

    files: tuple[StoredFile, ...] = ()
    notes: tuple[str, ...] = ()
    large: Mapping[str, Path] = field(default_factory=dict)


class Workshop(Protocol):
    """Where payloads are made ready, run, watched and cleared away."""

    def listen(self, hear: Callable[[Happening], None]) -> None:
        """Tell `hear` of all that happens to payloads from now on, from the event loop."""

    def wrap(self, wrapper: Path | None) -> None:
        """Run this program in place of those of all payloads from now on, with theirs as its arguments; or not."""

    def prepare(self, order: PrepareJob) -> None:
        """Make the folder of an attempt; raises NodeAtFaultError."""

    async def fetch(self, key: AttemptKey) -> None:
        """Bring the input files of a prepared attempt; raises JobAtFaultError or NodeAtFaultError."""

    def start(self, key: AttemptKey) -> None:
        """Start the payload of a prepared attempt; raises JobAtFaultError or NodeAtFaultError."""

    def stop(self, key: AttemptKey) -> None:
        """Ask all processes of a payload to end themselves."""

    def kill(self, key: AttemptKey) -> None:
        """End all processes of a payload."""

    def suspend(self, key: AttemptKey) -> None:
        """Stop all processes of a payload for a while."""

    def resume(self, key: AttemptKey) -> None:
        """Let all processes of a suspended payload go on."""

    def warn(self, key: AttemptKey, left_s: float) -> None:
        """Tell a payload that its time ends in `left_s` seconds."""

    def cpu_times(self) -> tuple[PayloadTime, ...]:
        """Return what each running payload has used so far."""

    async def collect(self, key: AttemptKey) -> Collected:
        """Return what an attempt left; raises WorldError when it cannot be read."""

    async def bring(self, key: AttemptKey, left: Collected) -> Collected:
        """Bring what is large of it to the server; returns it with nothing large.

        Raises
        ------
        WorldError
            When the files could not be brought to the server; `transient` says whether to try again.
        """

    def forget(self, key: AttemptKey) -> None:
        """Remove the folder of an attempt."""

    async def close(self) -> None:
        """End every payload and remove all folders; what is closed already stays so."""
