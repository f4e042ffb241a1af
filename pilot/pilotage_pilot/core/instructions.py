"""Instructions of the machine to its shell, and the slot as it is reported.

Instructions are imperative, frozen and complete: the shell decides nothing. Each instruction that takes time ends in
an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, TailStream
from pilotage.values.offers import AdPart, SlotOffer
from pilotage_pilot.core.model import GrantedJob, Now, Report, Usage
from pilotage_pilot.core.slots.states import Activity, SlotState


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as it is reported.

    `since` is the start of its activity, `since_state` that of its state, `key` its attempt. `ad` is its ClassAd
    without these, empty = unchanged since the last report; `readings` are its loads and idle times. `policy_fault` =
    why the server gives it no jobs for its policy or isolation, "" = it does.
    """

    name: str
    state: SlotState
    activity: Activity
    amounts: Amounts
    free: Amounts
    since: Now
    since_state: Now
    key: AttemptKey | None = None
    gpu_ids: tuple[str, ...] = ()
    partitionable: bool = False
    ad: str = ""
    readings: Mapping[str, float] = field(default_factory=dict)
    policy_fault: str = ""


@dataclass(frozen=True, slots=True)
class ValidateNode:
    """Check whether the node is fit for work → NodeValidated or NodeRefused."""


@dataclass(frozen=True, slots=True)
class ReadPools:
    """Read the pools of the queue → PoolsRead or PoolsFailed; `fresh` = from the server, not from the settings."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class RequestJobs:
    """Request jobs → JobsGranted or RequestFailed; a repetition with the same id gets the same jobs.

    `ad_parts` are those that the server may lack.
    """

    request_id: str
    slots: tuple[SlotOffer, ...]
    reports: tuple[Report, ...]
    wait_s: float
    pool_ids: tuple[str, ...] = ()
    ad_parts: tuple[AdPart, ...] = ()
    node_attributes_version: int = 0


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """Have a waiting request answered at once → JobsGranted or RequestFailed."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Renew leases and report → HeartbeatAnswered or HeartbeatFailed; `slots` None = not reported.

    `settable` are the attributes that operators may set remotely; `node_attributes_version` is the version that the
    pilot has (0 = none). `usages` = what running attempts have used, where it has changed much.
    """

    request_id: str
    leases: tuple[AttemptKey, ...]
    reports: tuple[Report, ...]
    slots: tuple[Slot, ...] | None
    draining: bool
    ending: bool = False
    ending_reason: str = ""
    node_attributes_version: int = 0
    settable: tuple[str, ...] = ()
    came_back_empty: bool = False
    usages: Mapping[AttemptKey, Usage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Prepare the folder of an attempt → JobPrepared or StartFailed.

    `nice` None = the operator's setting; `machine_ad` and `job_ad` become files for the job, empty = no file.
    """

    job: GrantedJob
    slot: Slot
    nice: int | None = None
    machine_ad: str = ""
    job_ad: str = ""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Have the watchdog kill the payload at this time on the boot clock, in place of the time before."""

    key: AttemptKey
    boot_s: float


@dataclass(frozen=True, slots=True)
class StartPayload:
    """Start the payload → PayloadStarted or StartFailed, and PayloadExited at its end."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class StopPayload:
    """Send SIGTERM to all processes of a payload."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class KillPayload:
    """Kill all processes of a payload, or stop its preparation → PayloadExited or StartFailed."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SuspendPayload:
    """Stop all processes of a payload until `ContinuePayload`."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ContinuePayload:
    """Continue all processes of a payload."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class WarnPayload:
    """Warn a payload that its time ends in `left_s` seconds."""

    key: AttemptKey
    left_s: float


@dataclass(frozen=True, slots=True)
class StoreOutput:
    """Collect and store the output of an attempt → OutputStored or OutputFailed.

    `is_partial` = its payload was stopped: closer limits apply.
    """

    key: AttemptKey
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class SendTails:
    """Send the end of these streams to the server while somebody follows them."""

    streams: tuple[TailStream, ...]


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Remove the folder of an attempt and cancel its tasks → FolderRemoved if `reports_removal`."""

    key: AttemptKey
    reports_removal: bool = False


@dataclass(frozen=True, slots=True)
class SampleNode:
    """Sample load, idle times, memory and disk → NodeSampled."""


@dataclass(frozen=True, slots=True)
class ReportRefusedAttributes:
    """Log the attributes that operators have set and the node refuses: reasons by attribute."""

    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReportPolicyFaults:
    """Log the slots that get no jobs for their policies: reasons by slot; "" = the slot gets jobs again."""

    faults: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EndPilot:
    """End the pilot's process."""

    reason: str
    exit_code: int


SignalInstruction = StopPayload | SuspendPayload | ContinuePayload | WarnPayload
"""Instructions for a running payload."""

PayloadInstruction = (
    PrepareJob | SetDeadline | StartPayload | KillPayload | StoreOutput | ForgetAttempt | SignalInstruction
)
"""Instructions for one attempt."""

ServerInstruction = RequestJobs | RecallRequest | SendHeartbeat | ReadPools
"""Calls of the server."""


@dataclass(frozen=True, slots=True)
class StoreClaimEnds:
    """Store when the last claim of each static slot ended, for later pilots on this node."""

    ends: Mapping[str, datetime]


NodeInstruction = ValidateNode | SampleNode | ReportRefusedAttributes | ReportPolicyFaults | StoreClaimEnds
"""Instructions for the node."""

Instruction = ServerInstruction | PayloadInstruction | NodeInstruction | SendTails | EndPilot


def without_waiting(call: RequestJobs) -> RequestJobs:
    """Return the same request with no wait."""
    return replace(call, wait_s=0.0)
