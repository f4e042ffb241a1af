"""The events of a pilot, and the pauses between its requests when a broker announces jobs.

Events are past tense, frozen and complete: they hold all that the machine has to know. An event of the broker is a hint
only; the truth is requested from the server.

Rules of `BrokerBackoff`
------------------------
Without a broker there is no pause: requests wait at the server. With one they are answered at once. After an empty
answer the pilot pauses until the broker wakes it, its slots change, or the longest pause is over. A wake-up during a
request counts after it, since the answer may have missed the announced jobs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pilotage.backoff import backoff, jittered
from pilotage.values.attempts import (
    AttemptKey,
    LostLease,
    Outcome,
    RenewedLease,
    ReportedOutput,
    ReportResult,
    TailStream,
)
from pilotage.values.offers import VacateOrder
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.core.model import NOTHING_USED, GrantedJob, Now, Usage
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.rules import PilotRules

SlotsVersion = tuple[Hashable, ...]
"""Version of all that is offered of the slots, and of the connection to the broker."""


@dataclass(frozen=True, slots=True)
class _Pause:
    slots: SlotsVersion
    since_boot_s: float
    until_boot_s: float


class BrokerBackoff:
    """Pauses the requests of a pilot while a broker would announce jobs to it."""

    def __init__(self, rules: PilotRules) -> None:
        self._rules = rules
        self.is_connected = False
        """Whether jobs would be announced."""
        self.connection = 0
        """Number of changes of the connection."""
        self._jitter = 1.0
        self._is_woken = False
        self._pause: _Pause | None = None

    def broker_changed(self, *, connected: bool, jitter: float) -> None:
        """Record the connection's state and end the pause; `jitter` (0 to 1) scales pauses, to spread many pilots."""
        self.is_connected = connected
        self.connection += 1
        self._jitter = jitter
        self._pause = None

    def wake(self) -> None:
        """End the pause, because the server may have jobs."""
        self._is_woken = True

    def request_sent(self) -> None:
        """Record that a request covers all wake-ups up to now."""
        self._is_woken = False

    def answered_empty(self, slots: SlotsVersion, now: Now) -> None:
        """Start a pause that lasts while `slots`, the version of the request, is unchanged."""
        if self.is_connected:
            length_s = jittered(self._rules.idle_ask_s, self._jitter)
            self._pause = _Pause(slots, now.boot_s, now.boot_s + length_s)

    def is_paused(self, slots: SlotsVersion, now: Now) -> bool:
        """Whether requests for this version of the slots are paused."""
        pause = self._pause
        return pause is not None and not self._is_woken and pause.slots == slots and now.boot_s < pause.until_boot_s

    def paused_before(self, boot_s: float) -> bool:
        """Whether the pause began before this time."""
        return self._pause is not None and self._pause.since_boot_s < boot_s

    def alarms(self) -> Iterator[float]:
        """Yield the end of the pause, on the boot clock."""
        if self._pause is not None:
            yield self._pause.until_boot_s


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """The connection to the broker is established, lost, or has new subscriptions; `jitter` (0 to 1) is random."""

    connected: bool
    jitter: float = 1.0


@dataclass(frozen=True, slots=True)
class JobsAnnounced:
    """Jobs that this pilot may get are waiting."""


@dataclass(frozen=True, slots=True)
class ContactRequested:
    """The server asks this pilot to call."""


BrokerEvent = BrokerChanged | JobsAnnounced | ContactRequested
"""Events of the broker."""


BACKOFF_FIRST_S, BACKOFF_LONGEST_S = 0.1, 30.0


class FailureKind(StrEnum):
    """What can be done after a failed call."""

    TRANSIENT = "transient"
    """A retry may succeed."""

    CREDENTIAL = "credential"
    """The server does not accept the pilot's credential."""

    REFUSED = "refused"
    """The server refused the call; a retry cannot succeed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed; `jitter` (0 to 1) is random, `least_s` is the server's least pause before a retry."""

    kind: FailureKind
    why: str
    jitter: float = 0.5
    least_s: float = 0.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after this number of failures in a row; the jitter spreads many pilots."""
        return self.least_s + jittered(backoff(failures, BACKOFF_FIRST_S, BACKOFF_LONGEST_S), self.jitter)


@dataclass(frozen=True, slots=True)
class KillCommanded:
    """The server orders one attempt to stop."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class DrainCommanded:
    """The server orders the pilot to drain."""

    reason: str
    evict: bool = False


@dataclass(frozen=True, slots=True)
class ReportCommanded:
    """The server orders a report of the whole node at once."""


Command = KillCommanded | DrainCommanded | ReportCommanded


@dataclass(frozen=True, slots=True)
class NodeAttributes:
    """All attributes that operators have set on the node: ClassAd expressions by attribute."""

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
    """The pools of the pilot's queue; `known` = the queue is in the resource tree."""

    known: bool
    pool_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolsFailed:
    """The pools could not be read."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class JobsGranted:
    """A request for jobs was answered, possibly without a job.

    `vacate` are orders to free occupied slots. Slots whose ads have a part in `ad_parts_wanted`, which the server
    lacks, were not matched. `node_attributes` None = unchanged. `slot_faults` = why slots get no jobs for their
    policies. `tails` are streams that somebody has begun to follow.
    """

    request_id: str
    jobs: tuple[GrantedJob, ...] = ()
    results: tuple[ReportResult, ...] = ()
    pools_changed: bool = False
    commands: tuple[Command, ...] = ()
    vacate: tuple[VacateOrder, ...] = ()
    ad_parts_wanted: tuple[str, ...] = ()
    node_attributes: NodeAttributes | None = None
    slot_faults: Mapping[str, str] = field(default_factory=dict)
    tails: tuple[TailStream, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request for jobs got no answer."""

    request_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """A heartbeat was answered; `server_time` is the server's clock, `node_attributes` None = unchanged.

    `tails` are the streams that somebody follows now.
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
    tails: tuple[TailStream, ...] = ()


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
    """An attempt could not be prepared or started; `outcome` says whether job or node is at fault.

    DECLINED = neither is; other jobs of its task queue would not start here either for now.
    """

    key: AttemptKey
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class PayloadStarted:
    """The payload's program is executed; `at` is when its process began, None = now."""

    key: AttemptKey
    at: Now | None = None


@dataclass(frozen=True, slots=True)
class LimitPassed:
    """A payload exceeds a limit; it still runs. `memory_limit_mib` 0 = it is not the memory limit."""

    key: AttemptKey
    reason: str
    memory_limit_mib: int = 0


@dataclass(frozen=True, slots=True)
class PayloadExited:
    """All processes of a payload are gone.

    `limit` tells of the memory limit for which the kernel killed it, `memory_limit_mib`; None and 0 = it did not.
    `fault` is why its container did not start, in which case it has neither exit code nor signal; "" = it did.
    `began` is when its process began, if no PayloadStarted came before, as for a payload of a moment.
    """

    key: AttemptKey
    exit_code: int | None
    signal: int | None
    usage: Usage = NOTHING_USED
    limit: str | None = None
    memory_limit_mib: int = 0
    fault: str = ""
    began: Now | None = None


@dataclass(frozen=True, slots=True)
class OutputStored:
    """The output of an attempt is stored; `notes` are for the owner."""

    key: AttemptKey
    files: tuple[ReportedOutput, ...] = ()
    notes: str = ""


@dataclass(frozen=True, slots=True)
class OutputFailed:
    """The output of an attempt could not be stored this time."""

    key: AttemptKey
    failure: Failure


@dataclass(frozen=True, slots=True)
class FolderRemoved:
    """The folder of an ended attempt is gone, with all that its payload has left there."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class NodeSampled:
    """The node was sampled."""

    sample: NodeSample


@dataclass(frozen=True, slots=True)
class PolicyReloaded:
    """The node's policy was reloaded; its layout is unchanged."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class PolicyRefused:
    """The node's new policy is invalid; the old one stays active."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal orders the pilot to end; `at_once` gives payloads no time."""

    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class SuspendRequested:
    """The batch system is about to suspend the glidein."""


@dataclass(frozen=True, slots=True)
class ContinueRequested:
    """The glidein is continued."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of the machine's alarm has come."""


AttemptEvent = (
    JobPrepared
    | StartFailed
    | PayloadStarted
    | LimitPassed
    | PayloadExited
    | OutputStored
    | OutputFailed
    | FolderRemoved
)
"""Events of one attempt."""

ServerEvent = PoolsRead | PoolsFailed | JobsGranted | RequestFailed | HeartbeatAnswered | HeartbeatFailed
"""Answers of the server, and failed calls."""

PolicyEvent = NodeSampled | PolicyReloaded | PolicyRefused
"""Changes of the policy or its inputs."""

NodeEvent = (
    NodeValidated | NodeRefused | StopRequested | SuspendRequested | ContinueRequested | TimePassed | PolicyEvent
)
"""Events of the whole pilot."""

Event = AttemptEvent | ServerEvent | BrokerEvent | NodeEvent
