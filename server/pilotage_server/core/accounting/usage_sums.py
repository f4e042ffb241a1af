"""Sums of what ended attempts have used, by day, VO, group, owner and site.

Rules
-----
- An attempt counts once, on the day of its end in UTC, with its whole run time. Suspended time counts too.
- It is done, failed (by itself, or at a limit of the job), or interrupted: it has left no result. An interrupted
  attempt counts if its payload has started.
- The group is the one that is charged, the owner is that of the job: an accounting group may have another user name.
- A later report corrects the sums: what was counted before is subtracted, on the same day.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.leases import AttemptRecord, LeasedJob
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.states import JobCause

_MOST_CORES = 10_000
"""A payload uses at most so many cores; more CPU time is a fault of its pilot, which must not spoil sums for ever."""

_OWN_ENDS = frozenset({Outcome.EXITED.value, Outcome.LIMIT_EXCEEDED.value, Outcome.REFUSED_BY_JOB.value})


class RunResult(StrEnum):
    """What an attempt has come to; interrupted = evicted, lost, removed, held or given back."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class SumKey(NamedTuple):
    """What attempts have in common whose use is summed; `day` as 2026-11-26."""

    day: str
    vo: str
    group: str
    owner: str
    site: str


@dataclass(slots=True)
class UsageSum:
    """The number of attempts by result, their run times in core seconds, their CPU time and their GPU seconds."""

    done: int = 0
    failed: int = 0
    interrupted: int = 0
    done_core_s: float = 0.0
    failed_core_s: float = 0.0
    interrupted_core_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0

    def add(self, other: UsageSum, times: int = 1) -> None:
        """Add other sums; `times` = -1 subtracts them."""
        self.done += times * other.done
        self.failed += times * other.failed
        self.interrupted += times * other.interrupted
        self.done_core_s += times * other.done_core_s
        self.failed_core_s += times * other.failed_core_s
        self.interrupted_core_s += times * other.interrupted_core_s
        self.cpu_s += times * other.cpu_s
        self.gpu_s += times * other.gpu_s


class UsageKey(StrEnum):
    """A property by which sums are divided."""

    DAY = "day"
    MONTH = "month"
    VO = "vo"
    GROUP = "group"
    OWNER = "owner"
    SITE = "site"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Selects sums; empty or None = all. `since` and `until` are days, both included. `by` divides the sums."""

    since: str = ""
    until: str = ""
    vo: str | None = None
    groups: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    sites: frozenset[str] = frozenset()
    by: tuple[UsageKey, ...] = ()


def day_of(time: datetime) -> str:
    """Return the day in UTC on which an attempt counts that ended then."""
    return time.astimezone(UTC).date().isoformat()


def sums_of_reports(
    jobs: Iterable[LeasedJob], reports: Iterable[JobReport], result: RunResult, now: datetime
) -> dict[SumKey, UsageSum]:
    """Return the sums of jobs whose attempts have ended now, by themselves, with these reports."""
    day, totals = day_of(now), dict[SumKey, _Totals]()
    for job, report in zip(jobs, reports, strict=True):
        reported_s = report.wall_s + report.suspended_s
        run_s = _run_s(reported_s, report.started or job.started, job.matched, now)
        key = SumKey(day, job.account.vo, job.account.group, job.owner, job.queue.site)
        totals.setdefault(key, _Totals()).add(run_s, job.cpus, job.gpus, report.cpu_s)
    return {key: total.as_sum(result) for key, total in totals.items()}


def sums_of_attempt(owner: str, attempt: AttemptRecord, ended: datetime, result: RunResult) -> dict[SumKey, UsageSum]:
    """Return the sum of an owner's attempt that ended then; nothing, if it was interrupted before it started."""
    if result is RunResult.INTERRUPTED and attempt.started is None:
        return {}
    reported_s = attempt.wall_s + attempt.suspended_s if attempt.reported else 0.0
    total = _Totals()
    total.add(_run_s(reported_s, attempt.started, attempt.matched, ended), attempt.cpus, attempt.gpus, attempt.cpu_s)
    key = SumKey(day_of(ended), attempt.account.vo, attempt.account.group, owner, attempt.queue.site)
    return {key: total.as_sum(result)}


def result_of(attempt: AttemptRecord, cause: JobCause) -> RunResult:
    """Return what an attempt has come to that ends with this transition of its job."""
    if not attempt.reported or attempt.outcome not in _OWN_ENDS:
        return RunResult.INTERRUPTED
    return RunResult.DONE if cause is JobCause.DONE else RunResult.FAILED


def _run_s(reported_s: float, started: datetime | None, matched: datetime, ended: datetime) -> float:
    """Return the run time by the pilot's clock, 0 = unknown, else by the server's; at most the time since the match."""
    if started is None:
        return 0.0
    return max(0.0, min(reported_s or (ended - started).total_seconds(), (ended - matched).total_seconds()))


@dataclass(slots=True)
class _Totals:
    """Totals of attempts with the same result."""

    attempts: int = 0
    core_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0

    def add(self, run_s: float, cpus: int, gpus: int, cpu_s: float) -> None:
        self.attempts += 1
        self.core_s += run_s * cpus
        self.cpu_s += min(cpu_s, run_s * _MOST_CORES)
        self.gpu_s += run_s * gpus

    def as_sum(self, result: RunResult) -> UsageSum:
        found = UsageSum(cpu_s=self.cpu_s, gpu_s=self.gpu_s)
        match result:
            case RunResult.DONE:
                found.done, found.done_core_s = self.attempts, self.core_s
            case RunResult.FAILED:
                found.failed, found.failed_core_s = self.attempts, self.core_s
            case RunResult.INTERRUPTED:
                found.interrupted, found.interrupted_core_s = self.attempts, self.core_s
        return found
