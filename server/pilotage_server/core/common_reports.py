"""Reports of the common kind: a job runs now, or its payload has come to its end; all there is to say are numbers.

Rules
-----
They mean what `leases` says that they mean. Those that say the same of jobs in the same state are judged once; what
they change differs from job to job in few values. Anything else is judged and recorded report by report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.jobs import FINAL, JobCause, JobState, next_state
from pilotage_server.core.leases import Accept, Repeat, judge_live, meter_begins, time_ran
from pilotage_server.core.reports import FACTS, JobReport


class HeldJob(NamedTuple):
    """A job that holds a lease, and the attempt that does: as much of both as such reports change or refer to."""

    job_id: int
    attempt: int
    state: JobState
    started: datetime | None
    starts: int
    wall_clock: timedelta
    task_queue_id: int
    is_watched: bool
    races: bool
    pilot_stamp: str
    queue: QueueId
    weight: float
    account: Account
    matched: datetime
    metered: datetime | None


Word = tuple[object, ...]
"""What reports that say the same have in common, with the state of their jobs."""


class Step(NamedTuple):
    """One step that a report makes its job take, and why, in words for people."""

    before: JobState
    cause: JobCause
    after: JobState
    reason: str


Columns = dict[str, Sequence[Any]]
"""By the names of fields, their values, one for each job."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Jobs of which the same word is said, and the reports that say it; `begins` = their meters begin with it."""

    jobs: Sequence[HeldJob]
    reports: Sequence[JobReport]
    begins: bool = False

    def same(self, **values: Any) -> Columns:
        """Return columns in which all the jobs have the same values."""
        return {name: [value] * len(self.jobs) for name, value in values.items()}


def tells_numbers_only(report: JobReport) -> bool:
    """Whether a report tells numbers only."""
    return not (report.reason or report.output_files or report.hold or report.plugged)


def word_of(job: HeldJob, report: JobReport) -> Word:
    """Return what the report says of the job; the numbers of both left out."""
    is_metered = job.metered is not None
    return (job.state, is_metered, report.state, report.outcome, report.exit_code, report.signal, not report.started)


def common_steps(before: JobState, example: JobReport) -> tuple[Step, ...] | None:
    """Return the steps that the report makes a job take which is in this state, as all do that say the same.

    None of them = it is known. None = the report is not of this kind.
    """
    verdict = judge_live(before, example) if before in _SIMPLE else None
    if isinstance(verdict, Repeat):
        return ()
    if not isinstance(verdict, Accept) or not _COMMON.issuperset(verdict.causes):
        return None
    steps: list[Step] = []
    state = before
    for cause in verdict.causes:
        after = next_state(state, cause)
        steps.append(Step(state, cause, after, verdict.reason if cause is verdict.causes[-1] else ""))
        state = after
    return tuple(steps)


_SIMPLE = frozenset({JobState.MATCHED, JobState.RUNNING, JobState.COMPLETING})
"""States of jobs whose attempts have been metered without a pause since their match, or their start."""
_COMMON = frozenset({JobCause.STARTED, JobCause.DONE, JobCause.FAILED})


def metered_from_start(steps: Sequence[Step], alike: Alike, now: datetime) -> Alike:
    """Return the jobs as they are when the meters of attempts that use nothing before they start have begun to run."""
    if steps[0].cause is not JobCause.STARTED:
        return alike
    pairs = zip(alike.jobs, alike.reports, strict=True)
    jobs = [job._replace(metered=meter_begins(report, job.matched, now)) for job, report in pairs]
    return Alike(jobs, alike.reports, begins=True)


def job_changes(steps: Sequence[Step], alike: Alike, now: datetime) -> Columns:
    """Return what the steps give the fields of the jobs' records."""
    last = steps[-1]
    started: Sequence[datetime | None] = [job.started for job in alike.jobs]
    changes = alike.same(state=last.after, reason=last.reason, state_since=now)
    if steps[0].cause is JobCause.STARTED:
        started = _started(alike, now)
        changes |= {"started": started, "starts": [job.starts + 1 for job in alike.jobs]}
    if last.after in FINAL:
        example = alike.reports[0]
        changes |= alike.same(ended=now, lease_until=None, exit_code=example.exit_code, signal=example.signal)
        changes["wall_clock"] = [
            job.wall_clock + time_ran(report, began, job.matched, now)
            for job, report, began in zip(alike.jobs, alike.reports, started, strict=True)
        ]
    return changes


def attempt_changes(steps: Sequence[Step], alike: Alike, now: datetime) -> Columns:
    """Return what the reports and the steps give the fields of the jobs' attempts."""
    last, example = steps[-1], alike.reports[0]
    changes: Columns = dict(zip(FACTS, zip(*map(_facts, alike.reports), strict=True), strict=True))
    if example.outcome is None:
        metered = {"metered": [job.metered for job in alike.jobs]} if alike.begins else {}
        return {**changes, **metered, "started": _started(alike, now)}
    if example.started is not None:
        changes["started"] = [report.started for report in alike.reports]
    ended = alike.same(ended=now, metered=None, reported=True, outcome=example.outcome.value, reason=last.reason)
    return changes | ended


_facts = attrgetter(*FACTS)


def _started(alike: Alike, now: datetime) -> list[datetime]:
    return [report.started or now for report in alike.reports]
