"""Pilots' reports of attempts: judged one by one, in their order, and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from pilotage.errors import StateConflictError
from pilotage_server.core.holds import HoldCode
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import LEASED, JobCause, next_state
from pilotage_server.core.leases import Accept, AttemptRecord, Refuse, Repeat, judge_report
from pilotage_server.core.reports import JobReport
from pilotage_server.operations.files import record_outputs
from pilotage_server.operations.job_steps import step
from pilotage_server.operations.lingering import attempts_over
from pilotage_server.operations.lost_attempts import Loss, lose
from pilotage_server.operations.metering import go_on
from pilotage_server.operations.pilot_calls import credential_of
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import count_ended_jobs


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What became of one report; `refusal` "" = it was recorded, now or by an earlier call."""

    job_id: int
    attempt: int
    refusal: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it was recorded."""
        return not self.refusal


@dataclass(slots=True)
class _Desk:
    """One call's reports on their way: the jobs and attempts as the reports before have left them."""

    unit: Unit
    world: World
    identity: Identity
    jobs: dict[int, JobRecord]
    attempts: dict[attempts.AttemptKey, AttemptRecord]
    ended: int = field(default=0)

    @property
    def stamp(self) -> str:
        return credential_of(self.identity).stamp

    @property
    def actor(self) -> str:
        return f"pilot:{self.stamp}"


def record_reports(
    unit: Unit, world: World, identity: Identity, reports: Sequence[JobReport]
) -> tuple[ReportResult, ...]:
    """Record what a pilot says of attempts, and return what became of each report, in order."""
    if not reports:
        return ()
    lock_jobs(unit.session, [report.job_id for report in reports])
    desk = _Desk(
        unit,
        world,
        identity,
        load_jobs(unit.session, [report.job_id for report in reports]),
        attempts.load_attempts(unit.session, [(report.job_id, report.attempt) for report in reports]),
    )
    results = tuple(_record(desk, report) for report in reports)
    if desk.ended:
        count_ended_jobs(unit.session, desk.stamp, desk.ended)
    return results


def _record(desk: _Desk, report: JobReport) -> ReportResult:
    key = (report.job_id, report.attempt)
    verdict = judge_report(desk.jobs.get(report.job_id), desk.attempts.get(key), report, desk.stamp)
    match verdict:
        case Accept():
            refusal = _accept(desk, report, verdict)
        case Repeat():
            refusal = ""
        case Refuse(refusal):
            _note_answered(desk, report)
        case _:
            assert_never(verdict)
    return ReportResult(*key, refusal)


def _accept(desk: _Desk, report: JobReport, verdict: Accept) -> str:
    """Let the report count; return why it does not after all, when somebody else was quicker."""
    job, attempt = desk.jobs[report.job_id], desk.attempts[report.job_id, report.attempt]
    try:
        if verdict.adopts:
            job = adopt(desk.unit, desk.world, job, attempt, actor=desk.actor)
            attempt = replace(attempt, ended=None, outcome="", reason="")
        desk.attempts[report.job_id, report.attempt] = _note_facts(desk, report, verdict, attempt)
        verdict = _with_notes(verdict, _keep_outputs(desk, job, report))
        if not verdict.causes:
            job = _over(desk, job, report)
        for cause in verdict.causes:
            job = _take_step(desk, job, cause, report, verdict)
    except StateConflictError as error:
        return str(error)
    desk.jobs[report.job_id] = job
    return ""


def _keep_outputs(desk: _Desk, job: JobRecord, report: JobReport) -> tuple[str, ...]:
    """Note the files that the attempt left; return which were not kept and why."""
    if not report.output_files:
        return ()
    return record_outputs(desk.unit, desk.world, desk.identity, job, report.attempt, report.output_files)


def _with_notes(verdict: Accept, notes: Sequence[str]) -> Accept:
    reason = "; ".join((*((verdict.reason,) if verdict.reason else ()), *notes))
    return replace(verdict, reason=reason)


def _take_step(desk: _Desk, job: JobRecord, cause: JobCause, report: JobReport, verdict: Accept) -> JobRecord:
    if verdict.spends and cause in {JobCause.START_FAILED, JobCause.LEASE_LOST}:
        (moved,) = lose(desk.unit, desk.world, [Loss(job, cause, verdict.reason)], actor=desk.actor)
        if moved is None:
            raise StateConflictError(f"job {job.id} has just been moved by somebody else")
        return moved
    matched = desk.attempts[report.job_id, report.attempt].matched
    changes = _told(job, cause, report, desk.unit.now - matched)
    if cause is JobCause.STARTED:
        changes["started"] = report.started or desk.unit.now
    reason = verdict.reason if cause is verdict.causes[-1] else ""
    return step(desk.unit, desk.world, job, cause, reason=reason, actor=desk.actor, **changes)


def _told(job: JobRecord, cause: JobCause, report: JobReport, longest: timedelta) -> dict[str, Any]:
    """Return what the job's record takes from the report of an end; no attempt ran longer than `longest`."""
    if next_state(job.state, cause) in LEASED:
        return {}
    told: dict[str, Any] = {}
    if cause in {JobCause.DONE, JobCause.FAILED}:
        told |= {"exit_code": report.exit_code, "signal": report.signal}
    if cause is JobCause.HELD and report.hold is not None:  # the attempt is over: nothing of it lingers
        told |= {"hold_code": int(HoldCode.STARTD_HELD_JOB), "hold_subcode": report.hold.subcode, "lease_until": None}
    ran_s = report.wall_s + report.suspended_s
    if ran_s and job.started is not None:
        told["wall_clock"] = job.wall_clock + timedelta(seconds=min(ran_s, longest.total_seconds()))
    return told


def _note_facts(desk: _Desk, report: JobReport, verdict: Accept, attempt: AttemptRecord) -> AttemptRecord:
    """Keep the report's numbers, and when it tells an end, that end; the lease itself ends with the job's step."""
    if report.outcome is None:
        started = report.started or desk.unit.now
        values: dict[str, Any] = {"started": started} if JobCause.STARTED in verdict.causes else {}
        attempts.record_facts(desk.unit.session, report, values)
        return attempt
    desk.ended += 1
    told: dict[str, Any] = {"reported": True, "outcome": report.outcome.value, "reason": verdict.reason}
    attempts.record_facts(desk.unit.session, report, told)
    ended = attempt.ended if not verdict.causes else desk.unit.now
    return replace(attempt, reported=True, outcome=report.outcome.value, reason=verdict.reason, ended=ended)


def _note_answered(desk: _Desk, report: JobReport) -> None:
    """Ask no more for the killing of an attempt whose end its pilot tells, late as that comes."""
    attempt = desk.attempts.get((report.job_id, report.attempt))
    if attempt is not None and attempt.pilot_stamp == desk.stamp and report.outcome is not None:
        attempts.change(desk.unit.session, [(report.job_id, report.attempt)], {"reported": True})


def _over(desk: _Desk, job: JobRecord, report: JobReport) -> JobRecord:
    """Let a job be matched again whose last attempt was taken from the pilot, once that tells its end."""
    if report.outcome is None or report.attempt != job.attempt or not job.lingers:
        return job
    attempts_over(desk.unit, desk.world, [job.id])
    return replace(job, lease_until=None)


def adopt(unit: Unit, world: World, job: JobRecord, attempt: AttemptRecord, *, actor: str) -> JobRecord:
    """Take an attempt back that was given up because nothing was heard of it; it is not spent then.

    Raises
    ------
    StateConflictError
        The job has been matched again in this very moment.
    """
    adopted = step(
        unit,
        world,
        job,
        JobCause.ADOPTED,
        reason=f"attempt {attempt.attempt} was heard of again",
        actor=actor,
        spent_attempts=max(0, job.spent_attempts - 1),
        wall_clock=_before(job, attempt.ended or unit.now),
        lease_until=unit.now + (job.lease or world.rules.lease),
        pilot_stamp=attempt.pilot_stamp,
        queue=attempt.queue,
        node=attempt.node,
        slot=attempt.slot,
    )
    attempts.change(unit.session, [(job.id, attempt.attempt)], {"ended": None, "outcome": "", "reason": ""})
    # What was charged at the end that was none stays charged: the meter goes on where it stopped.
    go_on(unit, world, [attempt], attempt.ended or unit.now)
    return adopted


def _before(job: JobRecord, given_up: datetime) -> timedelta:
    """Return how long the attempts before the adopted one ran; what was counted when that was given up goes back."""
    counted = timedelta(0) if job.started is None else max(timedelta(0), given_up - job.started)
    return max(timedelta(0), job.wall_clock - counted)
