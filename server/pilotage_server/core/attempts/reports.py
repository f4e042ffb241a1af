"""What pilots report of attempts, nodes and slots, converted from the wire and not yet judged (see `leases`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pilotage.job_description import Value
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import JobHold, Outcome, ReportedOutput
from pilotage.values.isolation import Isolation
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.jobs.usage import AttemptUsage


class JobReport(NamedTuple):
    """A pilot's report of one attempt; `outcome` None = it has not ended, and `state` is its present state.

    Times are on the pilot's clock. `wall_s` excludes suspended time. `system_cpu_s` is the part of `cpu_s` that the
    kernel spent for the payload. `peak_memory_mib` and `peak_disk_mib` are the largest memory and size of its folder.
    `hold` applies to the outcome EVICTED only: the job is held instead of requeued. `plugged` = the payload has failed
    and keeps its slot for a while before the outcome is reported. `memory_limit_mib` = the memory limit that ended it,
    0 = none. `traceparent` = the trace context of the job's submission, not checked; "" = unknown or not sampled.
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
    hold: JobHold | None = None
    plugged: bool = False
    memory_limit_mib: int = 0
    system_cpu_s: float = 0.0
    peak_disk_mib: int = 0
    traceparent: str = ""


FACTS = ("exit_code", "signal", "cpu_s", "wall_s", "suspended_s", "peak_memory_mib", "system_cpu_s", "peak_disk_mib")
"""Fields of a report that are stored unchanged with the attempt."""


def reported_usage(report: JobReport) -> AttemptUsage:
    """Return what an attempt has used by its report, which has neither its cores nor its GPUs."""
    times = report.cpu_s, report.system_cpu_s, report.wall_s, report.suspended_s
    return AttemptUsage(report.attempt, 0, 0, *times, report.peak_memory_mib, report.peak_disk_mib)


class RunningUsage(NamedTuple):
    """What an attempt has used before its end."""

    job_id: int
    attempt: int
    cpu_s: float
    system_cpu_s: float
    peak_memory_mib: int
    peak_disk_mib: int

    @property
    def key(self) -> tuple[int, int]:
        """Job id and attempt."""
        return (self.job_id, self.attempt)


RUNNING_FACTS = RunningUsage._fields[2:]
"""Fields of a running attempt's use that are stored unchanged with the attempt."""


class ReceivedReport(NamedTuple):
    """A report with the stamp of the attempt's holder and the caller that sent it.

    `actor` is the name in events; `key` = job id and attempt.
    """

    identity: Identity
    stamp: str
    actor: str
    report: JobReport
    key: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReportedSlot:
    """One slot as its pilot reports it; `state` and `activity` are HTCondor's, `job_id` 0 = it has no job.

    `since` = when state or activity last changed, `since_state` = when the state did. `ad` is the ClassAd without the
    values of the other fields; "" = unchanged since the last report.
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
    """A node and all its slots as its pilot reports them.

    `amounts` = the pilot's share of the node. `ends` = when the glidein ends, None = unknown. `cpu_power` = normalised
    CPU seconds that one core does in a second, 0 = unknown. `settable_attributes` = those that operators may set.
    `isolation` = how the pilot isolates payloads.
    """

    name: str
    amounts: Amounts
    ends: datetime | None = None
    cpu_power: float = 0.0
    attributes: Mapping[str, Value] = field(default_factory=dict)
    slots: tuple[ReportedSlot, ...] = ()
    pilot_version: str = ""
    draining: bool = False
    settable_attributes: tuple[str, ...] = ()
    isolation: Isolation = Isolation.NONE
