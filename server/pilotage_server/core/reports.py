"""What pilots say: of attempts, of the leases they hold, of their nodes and slots.

Rules
-----
Values as they came in, already in the server's words; whether they are believed is decided in `leases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from pilotage.job_description import Value
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.job_files import ReportedOutput
from pilotage_server.core.jobs import JobState


class Outcome(StrEnum):
    """How an attempt ended on the pilot's side."""

    EXITED = "exited"
    LIMIT_EXCEEDED = "limit exceeded"
    START_FAILED = "start failed"
    REFUSED_BY_JOB = "refused by job"
    EVICTED = "evicted"
    DECLINED = "declined"
    KILLED = "killed"
    OUTPUT_LOST = "output lost"


@dataclass(frozen=True, slots=True)
class HoldWish:
    """The policy of the slot that evicted a job wants it held: why, for people, and the policy's own code."""

    reason: str
    subcode: int = 0


class JobReport(NamedTuple):
    """What a pilot says of one attempt; `outcome` None = it has not ended, and `state` is where the pilot has it.

    Times are on the pilot's clock. `wall_s` counts no suspended time. `peak_memory_mib` is its largest resident
    memory. `hold` counts with the outcome EVICTED only: the job is held instead of waiting again. `plugged` = the
    payload has failed, and keeps its slot for a while before that is its outcome.
    """

    job_id: int
    attempt: int
    state: JobState = JobState.DONE
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    suspended_s: float = 0.0
    peak_memory_mib: int = 0
    output_files: tuple[ReportedOutput, ...] = ()
    hold: HoldWish | None = None
    plugged: bool = False


FACTS = ("exit_code", "signal", "cpu_s", "wall_s", "suspended_s", "peak_memory_mib")
"""Fields of a report that are kept with its attempt as they were told."""


class HeldLease(NamedTuple):
    """An attempt that a pilot works on."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot as its pilot sees it; `state` and `activity` are HTCondor's words, `job_id` 0 = no job in it.

    `since` = since when it has state and activity, `since_state` = the state. `ad` is its ClassAd without what the
    other fields tell; "" = as it was told before.
    """

    name: str
    state: str
    activity: str
    amounts: Amounts
    free: Amounts
    job_id: int = 0
    since: datetime | None = None
    load: float = 0.0
    partitionable: bool = False
    attributes: Mapping[str, Value] = field(default_factory=dict)
    attempt: int = 0
    since_state: datetime | None = None
    ad: str = ""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and all its slots as its pilot sees them.

    `amounts` = what the pilot was given of the node. `ends` = when the glidein ends, None = not known.
    `cpu_power` = normalised CPU seconds that one core does in a second, 0 = not known. `settable_attributes` are
    those that its policy lets operators set from afar.
    """

    name: str
    amounts: Amounts
    ends: datetime | None = None
    cpu_power: float = 0.0
    attributes: Mapping[str, Value] = field(default_factory=dict)
    slots: tuple[SlotState, ...] = ()
    pilot_version: str = ""
    draining: bool = False
    settable_attributes: tuple[str, ...] = ()
