"""The interface to payloads: what the pilot's shell needs of the code that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilotage.errors import PilotageError
from pilotage.jobs.files import JobFaultError
from pilotage.values.attempts import AttemptKey, Outcome, ReportedOutput, TailStream
from pilotage.values.isolation import Isolation
from pilotage_pilot.core.events import LimitPassed, PayloadExited, PayloadStarted, StartFailed, StopRequested
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import Now, Usage

PayloadEvent = PayloadStarted | StartFailed | PayloadExited | LimitPassed | StopRequested
"""Events of payloads; StopRequested = no payload can be started any more."""


class NodeFaultError(PilotageError):
    """The payload cannot be started, by a fault of the pilot or the node; another node may start it."""


class RegistryFaultError(PilotageError):
    """The registry of a job's image does not serve this node now; neither job nor node is at fault."""


class AccountFaultError(PilotageError):
    """The owner of a job gets no local account on this node now; the job is not at fault."""


def start_failed(key: AttemptKey, error: PilotageError) -> StartFailed:
    """Return the event of a payload that was not started for this error."""
    if isinstance(error, JobFaultError):
        return StartFailed(key, Outcome.REFUSED_BY_JOB, str(error))
    if isinstance(error, RegistryFaultError | AccountFaultError):
        return StartFailed(key, Outcome.DECLINED, str(error))
    return StartFailed(key, Outcome.START_FAILED, str(error))


@dataclass(frozen=True, slots=True)
class PayloadTime:
    """The CPU seconds that a payload has used so far, and the name of its slot."""

    key: AttemptKey
    slot: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class CollectedOutput:
    """The output of an attempt: `files` travel in its report; `large`, by name, have to be uploaded before it."""

    files: tuple[ReportedOutput, ...] = ()
    notes: tuple[str, ...] = ()
    large: Mapping[str, Path] = field(default_factory=dict)


class PayloadRunner(Protocol):
    """Prepares, starts, monitors and removes payloads."""

    @property
    def isolation(self) -> Isolation:
        """How payloads are isolated."""

    @property
    def has_accounts(self) -> bool:
        """Whether payloads run as accounts of their owners, which `fetch` provides."""

    def subscribe(self, publish: Callable[[PayloadEvent], None]) -> None:
        """Call `publish` from the event loop for each event of a payload from now on."""

    def wrap(self, wrapper: Path | None) -> None:
        """Start payloads through this program from now on, with theirs as its arguments; None = directly."""

    def prepare(self, order: PrepareJob) -> None:
        """Make the folder of an attempt; raises NodeFaultError."""

    async def fetch(self, key: AttemptKey) -> None:
        """Fetch the input files, the image and the account of a prepared attempt.

        Raises JobFaultError, NodeFaultError, RegistryFaultError or AccountFaultError.
        """

    def set_deadline(self, key: AttemptKey, boot_s: float) -> None:
        """Have the watchdog kill the payload at this time on the boot clock, in place of the time before."""

    def start(self, key: AttemptKey, now: Now) -> None:
        """Begin to start the payload of a prepared attempt; raises JobFaultError or NodeFaultError.

        PayloadStarted or StartFailed follows, or PayloadExited for a payload of a moment.
        """

    def stop(self, key: AttemptKey) -> None:
        """Send SIGTERM to all processes of a payload."""

    def kill(self, key: AttemptKey) -> None:
        """Kill all processes of a payload."""

    def suspend(self, key: AttemptKey) -> None:
        """Stop all processes of a payload until `resume`."""

    def resume(self, key: AttemptKey) -> None:
        """Continue all processes of a suspended payload."""

    def warn(self, key: AttemptKey, left_s: float) -> None:
        """Warn a payload that its time ends in `left_s` seconds."""

    def cpu_times(self) -> tuple[PayloadTime, ...]:
        """Return the CPU time of each running payload."""

    def usages(self) -> Mapping[AttemptKey, Usage]:
        """Return what each payload has used so far, except new ones."""

    def stream_path(self, stream: TailStream) -> Path | None:
        """Return the path of a stream of a prepared attempt; None = it is not kept, or there is no such attempt."""

    def collect_now(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput | None:
        """Return the output of an attempt as `collect`, None = that may take long."""

    async def collect(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput:
        """Return the output of an attempt; raises WorldError when it cannot be read.

        `is_partial` = its payload was stopped: closer limits apply.
        """

    async def upload_large(self, key: AttemptKey, left: CollectedOutput) -> CollectedOutput:
        """Upload the large files of an output; returns it with `large` empty.

        Raises
        ------
        WorldError
            When a file cannot be uploaded; `transient` says whether to try again.
        """

    def remove(self, key: AttemptKey, removed: Callable[[], None] | None = None) -> None:
        """Remove the folder of an attempt, and call `removed` when it is gone."""

    async def close(self) -> None:
        """Kill every payload and remove all folders; a second call does nothing."""
