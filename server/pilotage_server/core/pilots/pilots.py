"""Pilots: their state, the state of their glideins, and whether they get work.

Rules
-----
- A call of a pilot outweighs silence: a lost pilot that calls again is alive again.
- A last will is a hint: the broker publishes it, too, when it restarts or when only its own network fails. A pilot is
  lost only if it has not called for longer than its heartbeats and their margin.
- A pilot that has ended gets no work any more. So does one whose credential has ended, and one whose glidein has
  ended, if no process of it can be left.
- An unknown state in the batch system never ends a pilot. A lost pilot that had not called yet counts as submitted
  again when its glidein is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from pilotage.job_description import Value
from pilotage.resources.tree import QueueId
from pilotage.values.containers import HAS_CONTAINERS
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.rules import Rules

ARRIVING = frozenset({PilotState.REGISTERED, PilotState.SUBMITTED})
"""Pilots that have not called yet."""

ALIVE = frozenset({PilotState.RUNNING, PilotState.DRAINING})
"""Pilots that have called and are not known to have ended."""

OVER = frozenset({PilotState.ENDED, PilotState.LOST})
"""Pilots that have ended or are lost."""

LONGEST_START = timedelta(minutes=2)
"""The time from the start of a glidein to the first call of its pilot, where nodes can reach the server."""


class SecondUse(StrEnum):
    """What happens to a pilot whose enrolment secret is used a second time."""

    REPORT = "report"
    DRAIN = "drain"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class PilotRecord:
    """A pilot by its stamp.

    `vos` = the VOs that it serves, none = all that its queue admits. `isolation` None = it has not reported its node.
    `nonce_hash` is that of its random bytes at its enrolment, "" = it has not enrolled.
    `alarm` = why an operator must look at it, "" = nothing happened. `drain_reason` "" = it need not drain.
    `glidein_seen` = when its batch system last reported the glidein before the pilot's first call; None = never.
    `glidein_started` = when it was first reported as running then; None = it waits, or the pilot calls. `ends`
    = when its glidein ends, None = unknown. `jobs_ended` counts the attempts that it has reported as ended.
    `credential_ends` = when its calls are refused: it was revoked, or ordered to evict its jobs; None = with its token.
    `report_requested` = since when an operator waits for a report of its slots; None = none waits.
    `has_unreported_ends` = it has not reported the end of attempts that were taken from it. `queue_set` = the patterns
    of the queues that it may land on; its queue is NO_QUEUE until it enrols. Empty = it was registered for its queue.
    """

    stamp: str
    queue: QueueId
    vos: tuple[str, ...]
    state: PilotState
    reason: str
    glidein_id: str
    node: str
    isolation: Isolation | None
    nonce_hash: str
    alarm: str
    drain_reason: str
    drain_evicts: bool
    jobs_ended: int
    registered: datetime
    glidein_seen: datetime | None
    glidein_started: datetime | None
    last_seen: datetime | None
    ends: datetime | None
    credential_ends: datetime | None
    report_requested: datetime | None
    has_unreported_ends: bool
    queue_set: tuple[str, ...] = ()

    @property
    def drains(self) -> bool:
        """Whether it has been ordered to drain."""
        return bool(self.drain_reason)

    @property
    def is_awaited(self) -> bool:
        """Whether it has not called yet and still may."""
        return self.last_seen is None and self.state is not PilotState.ENDED

    def is_overdue(self, now: datetime) -> bool:
        """Whether its glidein has run for longer than a start takes, but the pilot has not called."""
        return (
            self.last_seen is None and self.glidein_started is not None and now - self.glidein_started > LONGEST_START
        )

    def is_revoked(self, now: datetime) -> bool:
        """Whether its credential has ended."""
        return self.credential_ends is not None and self.credential_ends <= now


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot and its place.

    `ends`, `cpu_power` and `node_attributes` are its node's; None and 0 = unknown. `isolation` is its pilot's.
    `draining` = its pilot takes no new jobs. `settable_attributes` = those that operators may set on the node.
    `answered` = when its pilot last reported its slots on request.
    """

    slot: ReportedSlot
    node: str
    pilot_stamp: str
    queue: QueueId
    last_seen: datetime | None
    ends: datetime | None = None
    cpu_power: float = 0.0
    draining: bool = False
    node_attributes: Mapping[str, Value] = field(default_factory=dict)
    settable_attributes: tuple[str, ...] = ()
    isolation: Isolation = Isolation.NONE
    answered: datetime | None = None

    @property
    def has_containers(self) -> bool:
        """Whether its pilot runs jobs in container images."""
        return self.node_attributes.get(HAS_CONTAINERS) is True

    @property
    def is_open(self) -> bool:
        """Whether it can take a job now that fits in its free amounts."""
        return not self.draining and self.slot.state not in _CLOSED and self.slot.free.cpus > 0

    @property
    def asks_for_work(self) -> bool:
        """Whether its pilot offers it. An Owner slot is offered, too: its policy may accept some job."""
        return self.is_open or (self.slot.state == "Owner" and not self.draining and self.slot.free.cpus > 0)

    def offer(self, now: datetime) -> SlotOffer:
        """Return the offer that the slot would make, as far as the server knows."""
        return SlotOffer(
            name=self.slot.name,
            free=self.slot.free,
            partitionable=self.slot.partitionable,
            time_left=None if self.ends is None else self.ends - now,
            cpu_power=self.cpu_power,
            isolation=self.isolation,
            has_containers=self.has_containers,
        )


_CLOSED = frozenset({"Owner", "Drained", "Preempting"})
"""HTCondor's slot states in which a slot takes no job, whatever is free."""


def state_after_contact(pilot: PilotRecord, now: datetime, *, draining: bool | None) -> PilotState:
    """Return the state of a pilot that has just called; a call of a revoked pilot does not make it alive again.

    `draining` = whether it reports that it takes no new jobs; None = not reported, so unchanged.
    """
    if pilot.state is PilotState.ENDED or pilot.is_revoked(now):
        return pilot.state
    drains = pilot.state is PilotState.DRAINING if draining is None else draining
    return PilotState.DRAINING if drains or pilot.drains else PilotState.RUNNING


def ended_unexpectedly(pilot: PilotRecord, report: GlideinReport, *, queue_known: bool) -> bool:
    """Whether the reported end is of a glidein that had existed and that neither an agent nor an operator ended."""
    was_there = bool(report.glidein_id or pilot.glidein_id)
    return was_there and queue_known and not (report.called_back or pilot.drains)


def has_surely_ended(pilot: PilotRecord, report: GlideinReport, now: datetime) -> bool:
    """Whether no process of a reported glidein is left, so that its leases can end at once.

    A pilot that has never called holds no lease. One that has called since the batch system was asked is alive.
    """
    if pilot.last_seen is None:
        return True
    return report.processes_ended and pilot.last_seen <= now - report.age


def why_no_work(pilot: PilotRecord | None, now: datetime, *, queue_known: bool) -> str:
    """Return why a pilot gets no work and must drain; "" = it may get some."""
    if pilot is None:
        return "the server does not know this pilot"
    if pilot.is_revoked(now):
        return f"the credential of the pilot has ended ({pilot.reason or pilot.drain_reason})"
    if pilot.state is PilotState.ENDED:
        return f"the pilot has ended ({pilot.reason})" if pilot.reason else "the pilot has ended"
    if not queue_known:
        return f"the queue {pilot.queue} is no longer in the resource tree"
    return pilot.drain_reason


def is_silent(pilot: PilotRecord, rules: Rules, now: datetime) -> bool:
    """Whether a pilot has not called for so long that it counts as lost."""
    if pilot.state in ALIVE:
        return pilot.last_seen is not None and now - pilot.last_seen > rules.pilot_silence
    time_limit = rules.pilot_arrival if pilot.state is PilotState.SUBMITTED else rules.pilot_submission
    return pilot.state in ARRIVING and now - (pilot.glidein_seen or pilot.registered) > time_limit


HEARTBEAT_MARGIN = timedelta(seconds=10)
"""How late a heartbeat may be recorded: contacts are written every 5 s at most, and a call takes time."""


def disconnected_after(rules: Rules) -> timedelta:
    """Return the silence after which a pilot that has left the broker is lost."""
    return rules.heartbeat + HEARTBEAT_MARGIN


def is_disconnected(pilot: PilotRecord, rules: Rules, now: datetime) -> bool:
    """Whether a pilot that has left the broker is lost: it does not call either."""
    is_silent = pilot.last_seen is None or now - pilot.last_seen > disconnected_after(rules)
    return pilot.state in ALIVE and is_silent


@dataclass(frozen=True, slots=True)
class PilotFilter:
    """A selection of pilots: all that is set must hold.

    `since` = only those that lived then or later. `ended` = also ended and lost ones, which `states` and `since`
    select too.
    """

    queue: QueueId | None = None
    site: str = ""
    node: str = ""
    states: frozenset[PilotState] = frozenset()
    since: datetime | None = None
    registered_by: str = ""
    ended: bool = False

    @property
    def includes_ended(self) -> bool:
        """Whether pilots that have ended or were lost are selected too."""
        return self.ended or bool(self.states) or self.since is not None


ALL_PRESENT = PilotFilter()
"""All pilots that have neither ended nor been lost."""
