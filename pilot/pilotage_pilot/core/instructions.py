"""What the machine wants done: the only things that its shell does.

Rules
-----
Imperative, frozen, complete: the shell decides nothing. Each instruction that takes time ends in an event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Report
from pilotage_pilot.core.slots import Slot


@dataclass(frozen=True, slots=True)
class ValidateNode:
    """Find out whether the node is fit for work → NodeValidated or NodeRefused."""


@dataclass(frozen=True, slots=True)
class ReadPools:
    """Find out the pools of the queue → PoolsRead or PoolsFailed; `fresh` = from the server, not from the file."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """What a request offers of a slot: `free` in it, for `time_left_s` (None = no end known)."""

    name: str
    free: Amounts
    time_left_s: float | None
    cpu_power: float
    declined_task_queues: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestJobs:
    """Ask for jobs → JobsGranted or RequestFailed; repeated with the same id it gives the same jobs."""

    request_id: str
    slots: tuple[SlotOffer, ...]
    reports: tuple[Report, ...]
    wait_s: float
    pool_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeBackRequest:
    """Let a waiting request be answered at once → JobsGranted or RequestFailed."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Renew leases and report → HeartbeatAnswered or HeartbeatFailed; `slots` None = nothing new of the node."""

    request_id: str
    leases: tuple[AttemptKey, ...]
    reports: tuple[Report, ...]
    slots: tuple[Slot, ...] | None
    draining: bool
    ending: bool = False
    ending_reason: str = ""


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make the folder of an attempt ready → JobPrepared or StartFailed."""

    job: GrantedJob
    slot: Slot


@dataclass(frozen=True, slots=True)
class StartPayload:
    """Start the payload → PayloadStarted or StartFailed, and in the end PayloadExited."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class StopPayload:
    """Ask all processes of a payload to end themselves."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class KillPayload:
    """End all processes of a payload, or its preparation → PayloadExited or StartFailed."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SuspendPayload:
    """Stop all processes of a payload for a while."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ContinuePayload:
    """Let all processes of a payload go on."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class WarnPayload:
    """Tell a payload that its time ends in `left_s` seconds."""

    key: AttemptKey
    left_s: float


@dataclass(frozen=True, slots=True)
class StoreOutput:
    """Collect and store what an attempt left → OutputStored or OutputFailed."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Remove the folder of an attempt, and all that is still done for it."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class EndPilot:
    """End the pilot's process."""

    reason: str
    exit_code: int


SignalInstruction = StopPayload | SuspendPayload | ContinuePayload | WarnPayload
"""What reaches a payload that runs."""

PayloadInstruction = PrepareJob | StartPayload | KillPayload | StoreOutput | ForgetAttempt | SignalInstruction
"""What is done for one attempt on the node."""

ServerInstruction = RequestJobs | TakeBackRequest | SendHeartbeat | ReadPools
"""What is said to the server."""

Instruction = ServerInstruction | PayloadInstruction | ValidateNode | EndPilot


def without_waiting(call: RequestJobs) -> RequestJobs:
    """Return the same request, to be answered at once."""
    return replace(call, wait_s=0.0)
