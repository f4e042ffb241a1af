"""Leases: what a pilot's report of an attempt does to the job, and when a lost attempt was the last.

Rules
-----
Nothing lost, nothing twice (DESIGN §8). An attempt has one outcome, recorded once; who reports it again hears
again that it was recorded. A late report of attempt n is believed, and n adopted again, as long as n+1 has not
been matched and n was lost by silence, not by anybody's wish. Only lost leases and failed starts are spent;
evictions and declined jobs are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import LEASED, JobCause, JobState
from pilotage_server.core.reports import JobReport, Outcome
from pilotage_server.core.routes import place_name

LOST_BY_SILENCE = frozenset({JobCause.LEASE_LOST.value, JobCause.ATTEMPTS_EXHAUSTED.value})
"""Outcomes that only say that nothing was heard: a later word of the pilot counts."""


class AttemptRecord(NamedTuple):
    """One attempt of a job; `ended` None = it holds its lease; `reported` = its pilot has said how it ended.

    `outcome` is a pilot's outcome or, where the server ended the lease, the cause of that. `account` is charged
    `weight` core seconds a second, since `metered` still; None = the attempt uses nothing now. `plugged` = its payload
    has failed and keeps its slot for a while.
    """

    job_id: int
    attempt: int
    pilot_stamp: str
    queue: QueueId
    node: str
    slot: str
    cpus: int
    weight: float
    account: Account
    matched: datetime
    ended: datetime | None = None
    outcome: str = ""
    reason: str = ""
    reported: bool = False
    metered: datetime | None = None
    plugged: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Job id and attempt."""
        return (self.job_id, self.attempt)

    def changed(self, columns: Mapping[str, Any]) -> AttemptRecord:
        """Return the record with the values of those columns that are fields of it."""
        values = list(self)
        for name in _CHANGING:
            if name in columns:
                values[_PLACES[name]] = columns[name]
        return AttemptRecord._make(values)


_CHANGING = ("ended", "outcome", "reason", "reported", "metered", "plugged")
"""Fields that may change; each is a column of the same name."""
_PLACES = {name: AttemptRecord._fields.index(name) for name in _CHANGING}


class Accept(NamedTuple):
    """The report counts: the job makes these steps, in order; none = its state stays and the facts are kept.

    `adopts` = the attempt, given up before, is the job's again first. `spends` = it counts as lost.
    """

    causes: tuple[JobCause, ...]
    reason: str = ""
    adopts: bool = False
    spends: bool = False


@dataclass(frozen=True, slots=True)
class Repeat:
    """The report says nothing that is not known; it is confirmed again."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The report does not count, for this reason; the attempt is no longer the pilot's."""

    reason: str


Verdict = Accept | Repeat | Refuse


def judge_report(job: JobRecord | None, attempt: AttemptRecord | None, report: JobReport, stamp: str) -> Verdict:
    """Return what the report of the pilot `stamp` means for the job; None = there is no such job or attempt."""
    if job is None or attempt is None or attempt.pilot_stamp != stamp:
        # one answer for all three, so that a pilot learns nothing of jobs that were never its own
        return Refuse(f"attempt {report.attempt} of job {report.job_id} is not this pilot's")
    if attempt.ended is None:
        return Repeat() if attempt.plugged and report.plugged else judge_live(job.state, report)
    if attempt.reported:
        return _of_answered(attempt, report)
    return _adopted(report) if is_adoptable(job, attempt) else _of_ended(attempt, report)


def is_adoptable(job: JobRecord, attempt: AttemptRecord) -> bool:
    """Whether the attempt, given up because nothing was heard of it, can still be taken back."""
    return (
        job.state is JobState.WAITING
        and job.attempt == attempt.attempt
        and attempt.ended is not None
        and not attempt.reported
        and attempt.outcome in LOST_BY_SILENCE
    )


def _of_answered(attempt: AttemptRecord, report: JobReport) -> Verdict:
    if attempt.outcome in LOST_BY_SILENCE:
        return Refuse(gone_reason(attempt))
    same = report.outcome in (None, attempt.outcome)
    return Repeat() if same else Refuse("another outcome was recorded before")


def _of_ended(attempt: AttemptRecord, report: JobReport) -> Verdict:
    if attempt.outcome not in LOST_BY_SILENCE and report.outcome is not None:
        return Accept((), reason=f"the job was {attempt.outcome} before")
    return Refuse(gone_reason(attempt))


def gone_reason(attempt: AttemptRecord) -> str:
    """Return why an attempt is no longer its pilot's, in words for people."""
    told, reason = attempt.outcome, attempt.reason
    why = (reason if reason.startswith(told) else f"{told}: {reason}") if reason else told
    return f"attempt {attempt.attempt} of job {attempt.job_id} has ended ({why})"


def _adopted(report: JobReport) -> Verdict:
    if report.outcome is Outcome.KILLED:
        return Accept((), reason="its lease was lost, and the pilot killed it")
    if report.plugged:
        return Accept((JobCause.PLUGGED,), reason=_plug_reason(report), adopts=True)
    if report.outcome is None:
        causes = {JobState.SUSPENDED: (JobCause.SUSPENDED,), JobState.COMPLETING: (JobCause.COMPLETING,)}
        return Accept(causes.get(report.state, ()), adopts=True)
    cause, spends = _end_of(report, report.outcome)
    return Accept((cause,), reason=outcome_reason(report), adopts=True, spends=spends)


def judge_live(state: JobState, report: JobReport) -> Accept | Repeat:
    """Return what the report of the pilot that has the lease means for a job in that state."""
    assert state in LEASED, "an attempt that has not ended holds a lease"
    if report.outcome is None and report.plugged and state is not JobState.COMPLETING:
        before = _PROGRESS.get((state, JobState.RUNNING), ())
        return Accept((*before, JobCause.PLUGGED), reason=_plug_reason(report))
    if report.outcome is None:
        causes = _PROGRESS.get((state, report.state))
        return Repeat() if causes is None else Accept(causes, reason=report.reason)
    cause, spends = _end_of(report, report.outcome)
    ran = state is JobState.MATCHED and report.started is not None
    causes = (JobCause.STARTED, cause) if ran else (cause,)
    return Accept(causes, reason=outcome_reason(report), spends=spends)


_PROGRESS: dict[tuple[JobState, JobState], tuple[JobCause, ...]] = {
    (JobState.MATCHED, JobState.RUNNING): (JobCause.STARTED,),
    (JobState.MATCHED, JobState.SUSPENDED): (JobCause.STARTED, JobCause.SUSPENDED),
    (JobState.MATCHED, JobState.COMPLETING): (JobCause.STARTED, JobCause.COMPLETING),
    (JobState.RUNNING, JobState.SUSPENDED): (JobCause.SUSPENDED,),
    (JobState.RUNNING, JobState.COMPLETING): (JobCause.COMPLETING,),
    (JobState.SUSPENDED, JobState.RUNNING): (JobCause.CONTINUED,),
    (JobState.SUSPENDED, JobState.COMPLETING): (JobCause.COMPLETING,),
}
"""The job's state and the pilot's → steps; what is missing is known already, or was said before something later."""

_ENDS: dict[Outcome, tuple[JobCause, bool]] = {
    Outcome.LIMIT_EXCEEDED: (JobCause.FAILED, False),
    Outcome.REFUSED_BY_JOB: (JobCause.FAILED, False),
    Outcome.START_FAILED: (JobCause.START_FAILED, True),
    Outcome.EVICTED: (JobCause.EVICTED, False),
    Outcome.DECLINED: (JobCause.DECLINED, False),
    # a pilot that killed on its own saw its lease run out before the server did
    Outcome.KILLED: (JobCause.LEASE_LOST, True),
    # for the job it is as if it had never started, for its place it is not
    Outcome.OUTPUT_LOST: (JobCause.START_FAILED, True),
}


def _end_of(report: JobReport, outcome: Outcome) -> tuple[JobCause, bool]:
    """Return what the end of an attempt does to its job, and whether the attempt counts as lost."""
    if outcome is Outcome.EXITED:
        return _exit_cause(report), False
    if outcome is Outcome.EVICTED and report.hold is not None:
        return JobCause.HELD, False
    return _ENDS[outcome]


def _exit_cause(report: JobReport) -> JobCause:
    return JobCause.DONE if report.exit_code == 0 and not report.signal else JobCause.FAILED


def time_ran(report: JobReport, started: datetime | None, matched: datetime, now: datetime) -> timedelta:
    """Return how long the attempt ran that the report ends, and that has told its start; none ran longer than it could.

    By its pilot's clock; where that has not told, by ours.
    """
    if started is None:
        return timedelta(0)
    ran_s = report.wall_s + report.suspended_s
    if ran_s:
        return timedelta(seconds=min(ran_s, (now - matched).total_seconds()))
    return max(timedelta(0), now - started)


def meter_begins(report: JobReport, matched: datetime, now: datetime) -> datetime:
    """Return since when an attempt uses something that uses nothing before its payload starts, as the report tells."""
    return max(matched, min(now, report.started or now))


def outcome_reason(report: JobReport) -> str:
    """Return how the attempt ended, in words for people; empty = it ended well."""
    if report.outcome is Outcome.EVICTED and report.hold is not None:
        return report.hold.reason or report.reason or "the policy of its slot wants it held"
    if report.outcome is Outcome.EXITED:
        words = "" if _exit_cause(report) is JobCause.DONE else _exit_text(report)
    else:
        words = str(report.outcome)
    return f"{words}: {report.reason}" if words and report.reason else words or report.reason


def _exit_text(report: JobReport) -> str:
    if report.signal:
        return f"signal {report.signal}"
    return "no exit code" if report.exit_code is None else f"exit code {report.exit_code}"


def _plug_reason(report: JobReport) -> str:
    return f"{_exit_text(report)} after {report.wall_s:.3g} s: its slot is kept for a while"


def is_last(spent_attempts: int, attempt_limit: int) -> bool:
    """Whether one more lost attempt exhausts the limit."""
    return spent_attempts + 1 >= attempt_limit


_MOST_TOLD = 20


def history(attempts: Sequence[AttemptRecord]) -> str:
    """Return where the attempts were and how each ended, in words for people; of very many the last ones."""
    told = [
        f"attempt {attempt.attempt} on {place_name(attempt.queue)} {attempt.node}".rstrip()
        + f": {attempt.outcome or 'ended'}"
        + (f", {attempt.reason}" if attempt.reason else "")
        for attempt in attempts[-_MOST_TOLD:]
    ]
    left_out = len(attempts) - len(told)
    return "; ".join(([f"{left_out} attempts before"] if left_out else []) + told)
