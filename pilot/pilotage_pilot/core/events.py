"""What happens to a pilot: the only things that its machine hears.

Rules
-----
Past tense, frozen, complete: what the machine has to know is in the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pilotage_pilot.core.broker_events import BrokerEvent
from pilotage_pilot.core.jobs import NOTHING_USED, AttemptKey, GrantedJob, Outcome, ReportResult, StoredFile, Usage
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slot_facts import NodeSample

BACKOFF_FIRST_S, BACKOFF_LONGEST_S = 0.1, 30.0


class FailureKind(StrEnum):
    """Whose turn it is after a call has failed."""

    TRANSIENT = "transient"
    """It may succeed when it is repeated."""

    CREDENTIAL = "credential"
    """The server does not take the pilot's credential (any more)."""

    REFUSED = "refused"
    """The server understood and said no; the same call will never succeed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed; `jitter` (0 to 1) is the shell's dice, `least_s` = so long the server is to be left alone."""

    kind: FailureKind
    why: str
    jitter: float = 0.5
    least_s: float = 0.0

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row; the jitter spreads many pilots over time."""
        longest = min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 16))
        return self.least_s + longest * (0.5 + self.jitter / 2)


@dataclass(frozen=True, slots=True)
class KillCommanded:
    """The server wants one attempt stopped."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class DrainCommanded:
    """The server wants the pilot to take no more jobs."""

    reason: str
    evict: bool = False


Command = KillCommanded | DrainCommanded


@dataclass(frozen=True, slots=True)
class VacateOrder:
    """The server wants an occupied slot for a better job."""

    slot: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeAttributes:
    """What operators have set on the node, all of it: ClassAd expressions by attribute."""

    version: int
    expressions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeValidated:
    """The node is fit for work."""


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """The node is not fit for work; `faults` is never empty."""

    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolsRead:
    """The pools of the pilot's queue are known, or the queue is not (any more)."""

    known: bool
    pool_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolsFailed:
    """The pools could not be asked for."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class JobsGranted:
    """A request for jobs was answered, possibly with none.

    `vacate` are the occupied slots that are wanted. To slots whose ads have a part in `ad_parts_wanted`, which the
    server does not know, nothing was matched. `node_attributes` None = as they were told before.
    """

    request_id: str
    jobs: tuple[GrantedJob, ...] = ()
    results: tuple[ReportResult, ...] = ()
    pools_changed: bool = False
    commands: tuple[Command, ...] = ()
    vacate: tuple[VacateOrder, ...] = ()
    ad_parts_wanted: tuple[str, ...] = ()
    node_attributes: NodeAttributes | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request for jobs got no answer."""

    request_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """A lease goes on for `lease_s` seconds from the sending of the heartbeat."""

    key: AttemptKey
    lease_s: float


@dataclass(frozen=True, slots=True)
class LostLease:
    """A lease has ended."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """A heartbeat was answered.

    `server_time` is the server's clock at that moment, None = it does not say. `node_attributes` None = as they were
    told before.
    """

    request_id: str
    renewed: tuple[RenewedLease, ...] = ()
    lost: tuple[LostLease, ...] = ()
    results: tuple[ReportResult, ...] = ()
    commands: tuple[Command, ...] = ()
    next_s: float = 0.0
    node_wanted: bool = False
    server_time: datetime | None = None
    node_attributes: NodeAttributes | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    """A heartbeat got no answer."""

    request_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class JobPrepared:
    """The folder of an attempt is ready."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class StartFailed:
    """An attempt could not be prepared or started; `outcome` says through whose fault."""

    key: AttemptKey
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class PayloadStarted:
    """The payload's process exists."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class LimitPassed:
    """A payload uses more than it may; it is still there."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class PayloadExited:
    """A payload and all its processes are gone; `limit` says which limit the kernel ended it for, if one."""

    key: AttemptKey
    exit_code: int | None
    signal: int | None
    usage: Usage = NOTHING_USED
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class OutputStored:
    """What an attempt left is stored; `notes` says what the owner should know."""

    key: AttemptKey
    files: tuple[StoredFile, ...] = ()
    notes: str = ""


@dataclass(frozen=True, slots=True)
class OutputFailed:
    """What an attempt left could not be stored this time."""

    key: AttemptKey
    failure: Failure


@dataclass(frozen=True, slots=True)
class NodeSampled:
    """The node was looked at."""

    sample: NodeSample


@dataclass(frozen=True, slots=True)
class PolicyReloaded:
    """The node's policy was read anew; its slots are laid out as before."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """The node's new policy cannot be followed, the old one holds."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Someone on the node wants the pilot to end; `at_once` leaves payloads no time."""

    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class SuspendRequested:
    """The batch system is about to suspend the glidein."""


@dataclass(frozen=True, slots=True)
class ContinueRequested:
    """The glidein goes on."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is the time that the machine's alarm was set to, or later."""


AttemptEvent = JobPrepared | StartFailed | PayloadStarted | LimitPassed | PayloadExited | OutputStored | OutputFailed
"""What happens to one attempt on the node."""

ServerEvent = PoolsRead | PoolsFailed | JobsGranted | RequestFailed | HeartbeatAnswered | HeartbeatFailed
"""What comes from the server, or fails to."""

PolicyEvent = NodeSampled | PolicyReloaded | PolicyRefused
"""What the slots' policy looks at, or itself, is another."""

NodeEvent = (
    NodeValidated | NodeRefused | StopRequested | SuspendRequested | ContinueRequested | TimePassed | PolicyEvent
)
"""What happens to the pilot as a whole."""

Event = AttemptEvent | ServerEvent | BrokerEvent | NodeEvent
