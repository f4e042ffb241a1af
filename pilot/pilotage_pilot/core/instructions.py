"""What the machine wants done: the only things that its shell does.

Rules
-----
Imperative, frozen, complete: the shell decides nothing. Each instruction that takes time ends in an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.jobs import Account, AttemptKey, GrantedJob, Report
from pilotage_pilot.core.slots import Slot


@dataclass(frozen=True, slots=True)
class ValidateNode:
    """Find out whether the node is fit for work → NodeValidated or NodeRefused."""


@dataclass(frozen=True, slots=True)
class ReadPools:
    """Find out the pools of the queue → PoolsRead or PoolsFailed; `fresh` = from the server, not from the file."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Occupied:
    """What a slot works on while it is offered for better jobs; `rank` is what it gives the job.

    `ordered` = it has been told to vacate and has not done so yet.
    """

    key: AttemptKey
    rank: float
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """What a request offers of a slot: `free` in it, for `time_left_s` (None = no end known).

    Its ad is made of the parts with the keys `ad_parts`, the later winning, and of `ad_changes`, a ClassAd that wins
    over them; no parts = it has no ad. `claim` = whose jobs go first in it; `occupied` = it is offered for better
    jobs only; `job_ad_wanted` = what comes for it brings its ad; `ahead` = so many more jobs of the same task queue may
    come with the first, for it runs them one after the other in no time.
    """

    name: str
    free: Amounts
    time_left_s: float | None
    cpu_power: float
    declined_task_queues: tuple[int, ...] = ()
    partitionable: bool = True
    ad_parts: tuple[str, ...] = ()
    ad_changes: str = ""
    claim: Account | None = None
    occupied: Occupied | None = None
    job_ad_wanted: bool = False
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class AdPart:
    """A part of slots' ads that stays the same for long; `key` is the SHA-256 of `text`, in hex."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class RequestJobs:
    """Ask for jobs → JobsGranted or RequestFailed; repeated with the same id it gives the same jobs.

    `ad_parts` are those that the server may not have yet.
    """

    request_id: str
    slots: tuple[SlotOffer, ...]
    reports: tuple[Report, ...]
    wait_s: float
    pool_ids: tuple[str, ...] = ()
    ad_parts: tuple[AdPart, ...] = ()
    node_attributes_version: int = 0


@dataclass(frozen=True, slots=True)
class TakeBackRequest:
    """Let a waiting request be answered at once → JobsGranted or RequestFailed."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Renew leases and report → HeartbeatAnswered or HeartbeatFailed; `slots` None = nothing new of the node.

    `settable` are the attributes that operators may set from afar, and `node_attributes_version` says which of their
    settings the pilot has (0 = none yet).
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


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make the folder of an attempt ready → JobPrepared or StartFailed.

    `nice` None = as the operator has it; `machine_ad` and `job_ad` are the ads that the job finds as files, empty =
    there are none.
    """

    job: GrantedJob
    slot: Slot
    nice: int | None = None
    machine_ad: str = ""
    job_ad: str = ""


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
class SampleNode:
    """Look at load, presence of people, memory and disk → NodeSampled."""


@dataclass(frozen=True, slots=True)
class ReportRefusedAttributes:
    """Tell people, in the log, what operators set on the node that it does not take: why, by attribute."""

    refused: Mapping[str, str]


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

NodeInstruction = ValidateNode | SampleNode | ReportRefusedAttributes
"""What concerns the node as a whole."""

Instruction = ServerInstruction | PayloadInstruction | NodeInstruction | EndPilot


def without_waiting(call: RequestJobs) -> RequestJobs:
    """Return the same request, to be answered at once."""
    return replace(call, wait_s=0.0)
