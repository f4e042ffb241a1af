"""Leases: how a pilot's report changes an attempt and its job.

Rules
-----
- No job is lost and none runs twice. An attempt has one outcome, recorded once.
- A repeated report is confirmed again and changes nothing.
- A late report of attempt n re-adopts n if n was lost because its pilot was silent and n+1 has not been matched.
- Only lost leases and failed starts count towards the limit of attempts. Evictions and declined jobs do not.

Most reports are starts and ends that carry numbers only. Equal reports of jobs in the same state are judged once, as a
`ReportBatch` whose changes are columns. All others are judged one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import FACTS, JobReport, ReceivedReport
from pilotage_server.core.jobs.record import Awaited, ExitCheck, JobRecord, location_name
from pilotage_server.core.jobs.states import FINAL, LEASED, HoldCode, JobCause, JobState, next_state
from pilotage_server.core.jobs.usage import AttemptUsage

LOST_BY_SILENCE = frozenset(
    {JobCause.LEASE_LOST.value, JobCause.ATTEMPTS_EXHAUSTED.value, JobCause.STARTS_EXHAUSTED.value}
)
"""Outcomes that the server sets when a lease expires. A later report of the pilot replaces them."""


class AttemptRecord(NamedTuple):
    """One attempt of a job.

    `ended` None = the attempt holds its lease. `reported` = its pilot has reported the outcome. `outcome` is the
    pilot's or, where the server ended the lease, the cause. `account` is charged `weight` core seconds a second from
    `metered` on; None = nothing is charged now. `plugged` = the payload has failed and keeps its slot for a while.
    `started` and the seconds are the pilot's figures: the last ones that it has sent.
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
    gpus: int = 0
    started: datetime | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    suspended_s: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        """Job id and attempt."""
        return (self.job_id, self.attempt)

    def changed(self, columns: Mapping[str, Any]) -> AttemptRecord:
        """Return the record with the new values; columns that are not fields of the record are ignored."""
        values = list(self)
        for name in _CHANGING_FIELDS:
            if name in columns:
                values[_INDEXES[name]] = columns[name]
        return AttemptRecord._make(values)


_CHANGING_FIELDS = (
    *("ended", "outcome", "reason", "reported", "metered", "plugged"),
    *("started", "cpu_s", "wall_s", "suspended_s"),
)
"""Fields that may change; each is a column of the same name."""
_INDEXES = {name: AttemptRecord._fields.index(name) for name in _CHANGING_FIELDS}


class AttemptFacts(NamedTuple):
    """An attempt with the exit of its payload and what it has used, for people."""

    record: AttemptRecord
    exit_code: int | None
    signal: int | None
    usage: AttemptUsage


class Accept(NamedTuple):
    """The report is accepted; the job makes these steps in order. Without steps only the numbers are stored.

    `adopts` = the lost attempt is re-adopted first. `spends` = it counts as lost.
    """

    causes: tuple[JobCause, ...]
    reason: str = ""
    adopts: bool = False
    spends: bool = False


@dataclass(frozen=True, slots=True)
class Repeat:
    """The report is already recorded; it is confirmed again."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The report is refused with this reason: the attempt no longer belongs to the pilot."""

    reason: str


ReportVerdict = Accept | Repeat | Refuse


def judge_report(job: JobRecord | None, attempt: AttemptRecord | None, report: JobReport, stamp: str) -> ReportVerdict:
    """Return what the report of pilot `stamp` changes; None = the job or the attempt does not exist."""
    if job is None or attempt is None or attempt.pilot_stamp != stamp:
        # The same message for all three cases, so that a pilot learns nothing about jobs of others.
        return Refuse(f"attempt {report.attempt} of job {report.job_id} is not this pilot's")
    if attempt.ended is None:
        return Repeat() if attempt.plugged and report.plugged else judge_live(job.state, report)
    if attempt.reported:
        return _judge_reported(attempt, report)
    return _judge_adoptable(report) if is_adoptable(job, attempt) else _judge_lost(attempt, report)


def is_adoptable(job: JobRecord, attempt: AttemptRecord) -> bool:
    """Whether the lost attempt can be re-adopted: its pilot was silent, and the job has not been matched again.

    One of a backup cannot: the job may have been matched again in the lost time.
    """
    return (
        job.state is JobState.WAITING
        and attempt.attempt > job.attempt_floor
        and job.attempt == attempt.attempt
        and attempt.ended is not None
        and not attempt.reported
        and attempt.outcome in LOST_BY_SILENCE
    )


def _judge_reported(attempt: AttemptRecord, report: JobReport) -> ReportVerdict:
    if attempt.outcome in LOST_BY_SILENCE:
        return Refuse(gone_reason(attempt))
    same = report.outcome in (None, attempt.outcome)
    return Repeat() if same else Refuse("another outcome was recorded before")


def _judge_lost(attempt: AttemptRecord, report: JobReport) -> ReportVerdict:
    if attempt.outcome not in LOST_BY_SILENCE and report.outcome is not None:
        return Accept((), reason=f"the job was {attempt.outcome} before")
    return Refuse(gone_reason(attempt))


def gone_reason(attempt: AttemptRecord) -> str:
    """Return why the attempt no longer belongs to its pilot, for people."""
    outcome, reason = attempt.outcome, attempt.reason
    why = (reason if reason.startswith(outcome) else f"{outcome}: {reason}") if reason else outcome
    return f"attempt {attempt.attempt} of job {attempt.job_id} has ended ({why})"


def _judge_adoptable(report: JobReport) -> ReportVerdict:
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
    """Return what a report of the leaseholder changes in a job of that state."""
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
"""The states of the job and of the report → steps. A missing pair is known already or older than the job's state."""

ENDS: dict[Outcome, tuple[JobCause, bool]] = {
    Outcome.LIMIT_EXCEEDED: (JobCause.FAILED, False),
    Outcome.REFUSED_BY_JOB: (JobCause.FAILED, False),
    Outcome.START_FAILED: (JobCause.START_FAILED, True),
    Outcome.EVICTED: (JobCause.EVICTED, False),
    Outcome.DECLINED: (JobCause.DECLINED, False),
    # The pilot saw its lease expire before the server did.
    Outcome.KILLED: (JobCause.LEASE_LOST, True),
    # The job counts as never started; the failure statistics of its location do not see a failed start.
    Outcome.OUTPUT_LOST: (JobCause.START_FAILED, True),
}


def _end_of(report: JobReport, outcome: Outcome) -> tuple[JobCause, bool]:
    if outcome is Outcome.EXITED:
        return _exit_cause(report), False
    if outcome is Outcome.EVICTED and report.hold is not None:
        return JobCause.HELD, False
    return ENDS[outcome]


def _exit_cause(report: JobReport) -> JobCause:
    return JobCause.DONE if report.exit_code == 0 and not report.signal else JobCause.FAILED


def run_time(report: JobReport, started: datetime | None, matched: datetime, now: datetime) -> timedelta:
    """Return how long the reported attempt ran, by the pilot's clock, else by the server's.

    It is at most the time since the match, and 0 for a payload that has not started.
    """
    if started is None:
        return timedelta(0)
    ran_s = report.wall_s + report.suspended_s
    if ran_s:
        return timedelta(seconds=min(ran_s, (now - matched).total_seconds()))
    return max(timedelta(0), now - started)


def changes_by_report(
    report: JobReport, job: JobRecord, cause: JobCause, matched: datetime, now: datetime
) -> dict[str, Any]:
    """Return the fields of the job's record that a report of a start or an end sets."""
    if cause is JobCause.STARTED:
        return {"started": report.started or now}
    if next_state(job.state, cause) in LEASED:
        return {}
    changes: dict[str, Any] = {}
    if cause is JobCause.DONE or cause is JobCause.FAILED:
        changes = {"exit_code": report.exit_code, "signal": report.signal}
    elif cause is JobCause.HELD and report.hold is not None:  # the attempt has ended, so no fence is needed
        changes = {"hold_code": int(HoldCode.STARTD_HELD_JOB), "hold_subcode": report.hold.subcode, "lease_until": None}
    changes["wall_clock"] = job.wall_clock + run_time(report, job.started, matched, now)
    return changes


def wall_clock_before(job: JobRecord, given_up: datetime) -> timedelta:
    """Return the job's wall-clock time without the attempt that was given up at `given_up`."""
    counted = timedelta(0) if job.started is None else max(timedelta(0), given_up - job.started)
    return max(timedelta(0), job.wall_clock - counted)


def metering_start(report: JobReport, matched: datetime, now: datetime) -> datetime:
    """Return when the charge of an attempt begins that is not charged before its payload starts."""
    return max(matched, min(now, report.started or now))


def outcome_reason(report: JobReport) -> str:
    """Return how the attempt ended, for people; "" = it succeeded."""
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


class LeasedJob(NamedTuple):
    """A job with a lease and its attempt: the fields that batched reports read or change."""

    job_id: int
    attempt: int
    state: JobState
    started: datetime | None
    starts: int
    wall_clock: timedelta
    owner: str
    task_queue_id: int
    is_watched: bool
    is_in_race: bool
    exit_check: ExitCheck
    awaited: Awaited
    pilot_stamp: str
    queue: QueueId
    cpus: int
    gpus: int
    weight: float
    account: Account
    matched: datetime
    metered: datetime | None


class ReportStep(NamedTuple):
    """One transition that a report causes, with the reason for people."""

    before: JobState
    cause: JobCause
    after: JobState
    reason: str


Columns = dict[str, Sequence[Any]]
"""New values by field name, one value for each job."""


@dataclass(frozen=True, slots=True)
class ReportBatch:
    """Reports that differ in numbers only, and their jobs, which all take the same steps; no steps = already recorded.

    `indexes` are the positions of the reports in their call. `starts_metering` = the charge of the jobs begins now.
    """

    indexes: Sequence[int]
    received: Sequence[ReceivedReport]
    reports: Sequence[JobReport]
    jobs: Sequence[LeasedJob]
    steps: Sequence[ReportStep]
    starts_metering: bool

    @property
    def ends(self) -> bool:
        """Whether the jobs are in a final state after the steps."""
        return bool(self.steps) and self.steps[-1].after in FINAL

    @property
    def awaited_jobs(self) -> list[int]:
        """The jobs whose step a dependency watches for."""
        starts = bool(self.steps) and self.steps[0].cause is JobCause.STARTED
        return [job.job_id for job in self.jobs if job.awaited and job.awaited.happens(starts=starts, ends=self.ends)]

    def job_changes(self, now: datetime) -> Columns:
        """Return the new values of the jobs' records."""
        last = self.steps[-1]
        started: Sequence[datetime | None] = [job.started for job in self.jobs]
        changes = self._constants(state=last.after, reason=last.reason, state_since=now)
        if self.steps[0].cause is JobCause.STARTED:
            started = self._starts(now)
            changes |= {"started": started, "starts": [job.starts + 1 for job in self.jobs]}
        if self.ends:
            example = self.reports[0]
            changes |= self._constants(ended=now, lease_until=None, exit_code=example.exit_code, signal=example.signal)
            changes["wall_clock"] = [
                job.wall_clock + run_time(report, began, job.matched, now)
                for job, report, began in zip(self.jobs, self.reports, started, strict=True)
            ]
        return changes

    def attempt_changes(self, now: datetime) -> Columns:
        """Return the new values of the jobs' attempts."""
        example = self.reports[0]
        changes: Columns = dict(zip(FACTS, zip(*map(_facts, self.reports), strict=True), strict=True))
        if example.outcome is None:
            metered = {"metered": [job.metered for job in self.jobs]} if self.starts_metering else {}
            return {**changes, **metered, "started": self._starts(now)}
        if example.started is not None:
            changes["started"] = [report.started for report in self.reports]
        outcome, reason = example.outcome.value, self.steps[-1].reason
        return changes | self._constants(ended=now, metered=None, reported=True, outcome=outcome, reason=reason)

    def _constants(self, **values: Any) -> Columns:
        return {name: [value] * len(self.jobs) for name, value in values.items()}

    def _starts(self, now: datetime) -> list[datetime]:
        return [report.started or now for report in self.reports]


_facts = attrgetter(*FACTS)
_BATCHED_STATES = frozenset({JobState.MATCHED, JobState.RUNNING, JobState.COMPLETING})
"""States in which an attempt has been charged without a pause since its match or start."""
_BATCHED_CAUSES = frozenset({JobCause.STARTED, JobCause.DONE, JobCause.FAILED})


def batch_candidates(received: Sequence[ReceivedReport]) -> list[int]:
    """Return the indexes of reports that may be batched: they carry numbers only and are alone for their jobs."""
    # The second of two reports of a job can be judged only after the first is recorded.
    times = Counter([each.report.job_id for each in received])
    return [
        index
        for index, each in enumerate(received)
        if times[each.report.job_id] == 1
        and not (each.report.reason or each.report.output_files or each.report.hold or each.report.plugged)
    ]


def batches_of(
    received: Sequence[ReceivedReport], candidates: Sequence[int], held: Mapping[int, LeasedJob], now: datetime
) -> list[ReportBatch]:
    """Return the candidates in batches. Those that must be judged one by one are left out."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index in candidates:
        _, stamp, _, report, _ = received[index]
        job = held.get(report.job_id)
        if job is None or job.is_in_race:  # the end of a race changes other jobs, too
            continue
        if job.exit_check is not ExitCheck.NONE and _may_repeat(job, report):
            continue
        if job.attempt == report.attempt and job.pilot_stamp == stamp:
            groups.setdefault(_batch_key(job, report), []).append(index)
    batches: list[ReportBatch] = []
    for indexes in groups.values():
        first = received[indexes[0]].report
        steps = _steps_in_batch(held[first.job_id].state, first)
        if steps is not None:
            batches.append(_batch(indexes, [received[index] for index in indexes], held, steps, now))
    return batches


def _may_repeat(job: LeasedJob, report: JobReport) -> bool:
    """Whether the report ends an attempt in a way about which the exit policy of the job decides."""
    if report.outcome is None:
        return False
    succeeded = report.outcome is Outcome.EXITED and report.exit_code == 0 and not report.signal
    return job.exit_check is ExitCheck.ALL or not succeeded


def _batch_key(job: LeasedJob, report: JobReport) -> tuple[object, ...]:
    """Return all values that decide what a report changes. The reports of one batch have equal keys."""
    is_metered = job.metered is not None
    return (job.state, is_metered, report.state, report.outcome, report.exit_code, report.signal, not report.started)


def _steps_in_batch(before: JobState, report: JobReport) -> tuple[ReportStep, ...] | None:
    """Return the steps of such a report, () if it is already recorded; None = it cannot be batched."""
    verdict = judge_live(before, report) if before in _BATCHED_STATES else None
    if isinstance(verdict, Repeat):
        return ()
    if not isinstance(verdict, Accept) or not _BATCHED_CAUSES.issuperset(verdict.causes):
        return None
    steps: list[ReportStep] = []
    state = before
    for cause in verdict.causes:
        after = next_state(state, cause)
        steps.append(ReportStep(state, cause, after, verdict.reason if cause is verdict.causes[-1] else ""))
        state = after
    return tuple(steps)


def _batch(
    indexes: Sequence[int],
    received: Sequence[ReceivedReport],
    held: Mapping[int, LeasedJob],
    steps: Sequence[ReportStep],
    now: datetime,
) -> ReportBatch:
    reports = [each.report for each in received]
    jobs = [held[report.job_id] for report in reports]
    begins = bool(steps) and steps[0].cause is JobCause.STARTED and jobs[0].metered is None
    if begins:
        pairs = zip(jobs, reports, strict=True)
        jobs = [job._replace(metered=metering_start(report, job.matched, now)) for job, report in pairs]
    return ReportBatch(indexes, received, reports, jobs, steps, begins)


def is_last(spent_attempts: int, attempt_limit: int) -> bool:
    """Whether one more lost attempt reaches the limit."""
    return spent_attempts + 1 >= attempt_limit


_MAX_ATTEMPTS_SHOWN = 20


def attempts_text(attempts: Sequence[AttemptRecord]) -> str:
    """Return where the attempts ran and how each ended, for people; of many attempts, the last 20."""
    texts = [
        f"attempt {attempt.attempt} on {location_name(attempt.queue)} {attempt.node}".rstrip()
        + f": {attempt.outcome or 'ended'}"
        + (f", {attempt.reason}" if attempt.reason else "")
        for attempt in attempts[-_MAX_ATTEMPTS_SHOWN:]
    ]
    left_out = len(attempts) - len(texts)
    return "; ".join(([f"{left_out} attempts before"] if left_out else []) + texts)
