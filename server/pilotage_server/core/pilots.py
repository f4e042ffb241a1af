"""Pilots as the server knows them: their life, what batch systems say of their glideins, who may get work.

Rules
-----
A pilot's own word outweighs silence: one that was given up as lost and is heard again lives again. One that has
said good-bye, or whose glidein its batch system says is gone, gets no work any more. A state that a batch system
does not know is never a death, and one that was given up before it came is on its way again when its glidein is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pilotage.job_description import Value
from pilotage.resource_tree import QueueId
from pilotage_server.core.reports import SlotState
from pilotage_server.core.rules import Rules
from pilotage_server.core.slots import SlotOffer


class PilotState(StrEnum):
    """Where a pilot is in its life."""

    REGISTERED = "REGISTERED"
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    ENDED = "ENDED"
    LOST = "LOST"


ARRIVING = frozenset({PilotState.REGISTERED, PilotState.SUBMITTED})
"""On their way: never heard yet."""

ALIVE = frozenset({PilotState.RUNNING, PilotState.DRAINING})
"""Heard, and not known to have ended."""

OVER = frozenset({PilotState.ENDED, PilotState.LOST})
"""Given up."""


@dataclass(frozen=True, slots=True)
class PilotRecord:
    """A pilot by its stamp.

    `vos` = the VOs it serves, none = all that its queue admits. `drain_reason` "" = nobody wants it to drain.
    `glidein_seen` = when its batch system last said that its glidein is there, before it came; None = never.
    `ends` = when its glidein ends, None = not known. `jobs_ended` counts the attempts it has brought to an end.
    `owes_answers` = attempts were taken from it that it has not answered for.
    """

    stamp: str
    queue: QueueId
    vos: tuple[str, ...]
    state: PilotState
    reason: str
    glidein_id: str
    node: str
    drain_reason: str
    drain_evicts: bool
    jobs_ended: int
    registered: datetime
    glidein_seen: datetime | None
    last_seen: datetime | None
    ends: datetime | None
    owes_answers: bool

    @property
    def drains(self) -> bool:
        """Whether somebody wants it to drain."""
        return bool(self.drain_reason)

    @property
    def is_awaited(self) -> bool:
        """Whether it was never heard, and may come."""
        return self.last_seen is None and self.state is not PilotState.ENDED


@dataclass(frozen=True, slots=True)
class GlideinReport:
    """What a batch system says of one glidein; `glidein_id` "" = none is known.

    With an end that is a submission that failed; without one it is a submission that was not answered.
    `called_back` = who reports its end has had it end.
    """

    stamp: str
    glidein_id: str
    state: PilotState
    reason: str = ""
    called_back: bool = False


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot and where it is.

    `ends` and `cpu_power` are its node's, None and 0 where that is not known, as is what the node tells in
    `node_attributes`; `draining` = its pilot takes no new jobs. `settable_attributes` may be set from afar on the node.
    """

    slot: SlotState
    node: str
    pilot_stamp: str
    queue: QueueId
    last_seen: datetime | None
    ends: datetime | None = None
    cpu_power: float = 0.0
    draining: bool = False
    node_attributes: Mapping[str, Value] = field(default_factory=dict)
    settable_attributes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a job could be given to it now, if it fits in what is free."""
        return not self.draining and self.slot.state not in _CLOSED and self.slot.free.cpus > 0

    @property
    def asks_for_work(self) -> bool:
        """Whether its pilot offers it: also an Owner slot, whose policy may want some job all the same."""
        return self.is_open or (self.slot.state == "Owner" and not self.draining and self.slot.free.cpus > 0)

    def offer(self, now: datetime) -> SlotOffer:
        """Return what the slot would ask for, as far as the server knows it."""
        return SlotOffer(
            name=self.slot.name,
            free=self.slot.free,
            partitionable=self.slot.partitionable,
            time_left=None if self.ends is None else self.ends - now,
            cpu_power=self.cpu_power,
        )


_CLOSED = frozenset({"Owner", "Drained", "Preempting"})
"""Slot states, in HTCondor's words, in which a slot takes no job whatever is free in it."""


def state_when_heard(pilot: PilotRecord, *, draining: bool | None) -> PilotState:
    """Return the state of a pilot that has just been heard.

    `draining` = whether it says that it takes no new jobs; None = it says nothing of that, so it is as it was.
    """
    if pilot.state is PilotState.ENDED:
        return PilotState.ENDED
    drains = pilot.state is PilotState.DRAINING if draining is None else draining
    return PilotState.DRAINING if drains or pilot.drains else PilotState.RUNNING


def is_gone_unasked(pilot: PilotRecord, report: GlideinReport, *, queue_known: bool) -> bool:
    """Whether a pilot that is reported to have ended had been in its batch system, and nobody of ours had it end."""
    was_there = bool(report.glidein_id or pilot.glidein_id)
    return was_there and queue_known and not (report.called_back or pilot.drains)


def why_no_work(pilot: PilotRecord | None, *, queue_known: bool) -> str:
    """Return why a pilot gets no work and must drain; empty = it may have some."""
    if pilot is None:
        return "the server does not know this pilot"
    if pilot.state is PilotState.ENDED:
        return f"the pilot has ended ({pilot.reason})" if pilot.reason else "the pilot has ended"
    if not queue_known:
        return f"the queue {pilot.queue} is no longer in the resource tree"
    return pilot.drain_reason


def is_silent(pilot: PilotRecord, rules: Rules, now: datetime) -> bool:
    """Whether a pilot has not been heard for so long that it counts as lost."""
    if pilot.state in ALIVE:
        return pilot.last_seen is not None and now - pilot.last_seen > rules.pilot_silence
    patience = rules.pilot_arrival if pilot.state is PilotState.SUBMITTED else rules.pilot_submission
    return pilot.state in ARRIVING and now - (pilot.glidein_seen or pilot.registered) > patience
