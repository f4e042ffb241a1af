"""Reports of attempts, from pilots and job routers: judged each in its turn, and recorded together.

Most are of the common kind, and are recorded in the quick way (`common_reports`). The plain way here is for all others,
and would leave the same of those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, assert_never

from pilotage_server.core.holds import HoldCode
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import LEASED, JobCause, next_state
from pilotage_server.core.leases import Accept, AttemptRecord, Refuse, Repeat, judge_report, meter_begins, time_ran
from pilotage_server.core.reports import JobReport
from pilotage_server.core.rounds import rounds
from pilotage_server.operations.attempt_book import AttemptBook
from pilotage_server.operations.common_reports import Told, record_common, told_by
from pilotage_server.operations.job_steps import Courses, Move
from pilotage_server.operations.lingering import attempts_over
from pilotage_server.operations.lost_attempts import Loss, move_of_loss
from pilotage_server.operations.metering import go_on
from pilotage_server.operations.output_book import OutputBook
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import AttemptKey, facts
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.lingering import lingering_of
from pilotage_server.storage.pilots import count_ended_jobs


class ReportResult(NamedTuple):
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
    """Reports on their way: the jobs and attempts as the reports before have left them."""

    unit: Unit
    world: World
    jobs: dict[int, JobRecord]
    book: AttemptBook
    courses: Courses
    outputs: OutputBook
    ended: Counter[str] = field(default_factory=Counter)


def record_reports(
    unit: Unit, world: World, calls: Sequence[tuple[Identity, Sequence[JobReport]]]
) -> list[tuple[ReportResult, ...]]:
    """Record what pilots say of attempts, and return for each call what became of its reports, in order.

    Nobody else may move the jobs meanwhile: `claims.lock_jobs` comes first.
    """
    results = iter(record_told(unit, world, [each for caller, reports in calls for each in told_by(caller, reports)]))
    return [tuple(islice(results, len(reports))) for _, reports in calls]


def record_told(unit: Unit, world: World, told: Sequence[Told]) -> list[ReportResult]:
    """Record what those say of attempts who hold them, and return what became of each report, in order.

    The same is asked of who calls.
    """
    common = record_common(unit, world, told)
    rest = [place for place in range(len(told)) if place not in common]
    refusals = dict(zip(rest, record_plainly(unit, world, [told[place] for place in rest]), strict=True))
    return [ReportResult(*each.key, refusals.get(place, "")) for place, each in enumerate(told)]


def record_plainly(unit: Unit, world: World, told: Sequence[Told]) -> list[str]:
    """Record reports of every kind, each for itself, and return why they are refused; "" = it was recorded."""
    if not told:
        return []
    book = AttemptBook(unit.session)
    jobs = load_jobs(unit.session, [each.report.job_id for each in told])
    book.read(each.key for each in told)
    outputs = OutputBook(unit, world.rules.jobs)
    outputs.read((each.identity, each.key, each.report.output_files) for each in told if each.report.output_files)
    desk = _Desk(unit, world, jobs, book, Courses(unit, world, book), outputs)
    refusals: dict[int, str] = {}
    for round_ in rounds(each.report.job_id for each in told):
        for place in round_:
            refusals[place] = _record(desk, told[place])
        desk.jobs.update(desk.courses.store())
    outputs.write()
    desk.courses.settle()
    count_ended_jobs(unit.session, desk.ended)
    return [refusals[place] for place in range(len(told))]


def _record(desk: _Desk, told: Told) -> str:
    attempt = desk.book.get(told.key)
    verdict = judge_report(desk.jobs.get(told.report.job_id), attempt, told.report, told.stamp)
    match verdict:
        case Accept():
            assert attempt is not None, "only what is there is accepted"
            _accept(desk, told, verdict, attempt)
            return ""
        case Repeat():
            return ""
        case Refuse(refusal):
            _note_answered(desk, told, attempt)
            return refusal
        case _:
            assert_never(verdict)


def _accept(desk: _Desk, told: Told, verdict: Accept, attempt: AttemptRecord) -> None:
    """Let the report count."""
    job = desk.jobs[told.report.job_id]
    if verdict.adopts:
        job = _adopt(desk, told, job, attempt)
    _note_facts(desk, told, verdict)
    if attempt.metered is None and JobCause.STARTED in verdict.causes:
        since = meter_begins(told.report, attempt.matched, desk.unit.now)
        go_on(desk.unit, desk.world, desk.book, [told.key], since)
    reason, files = verdict.reason, told.report.output_files
    if files:
        reason = _with_notes(reason, desk.outputs.keep(told.identity, told.key, files))
    if not verdict.causes and told.report.outcome is not None:
        _over(desk, told.key, job)
    for cause in verdict.causes:
        why = reason if cause is verdict.causes[-1] else ""
        if verdict.spends and cause in _LOSSES:
            job = _lose(desk, told, Loss(job, cause, why))
        else:
            learnt = _learnt(told.report, job, cause, attempt.matched, desk.unit.now)
            job = desk.courses.take(Move(job, cause, told.actor, why, learnt))


_LOSSES = frozenset({JobCause.START_FAILED, JobCause.LEASE_LOST})


def _with_notes(reason: str, notes: Sequence[str]) -> str:
    return "; ".join((*((reason,) if reason else ()), *notes))


def _lose(desk: _Desk, told: Told, loss: Loss) -> JobRecord:
    desk.book.write()  # the story of a job that has failed tells what was said of its last attempt
    return desk.courses.take(move_of_loss(desk.unit, desk.world, loss, told.actor))


def _learnt(report: JobReport, job: JobRecord, cause: JobCause, matched: datetime, now: datetime) -> dict[str, Any]:
    """Return what the job's record takes from the report of a start or an end."""
    if cause is JobCause.STARTED:
        return {"started": report.started or now}
    if next_state(job.state, cause) in LEASED:
        return {}
    learnt: dict[str, Any] = {}
    if cause is JobCause.DONE or cause is JobCause.FAILED:
        learnt = {"exit_code": report.exit_code, "signal": report.signal}
    elif cause is JobCause.HELD and report.hold is not None:  # the attempt is over: nothing of it lingers
        learnt = {"hold_code": int(HoldCode.STARTD_HELD_JOB), "hold_subcode": report.hold.subcode, "lease_until": None}
    learnt["wall_clock"] = job.wall_clock + time_ran(report, job.started, matched, now)
    return learnt


def _note_facts(desk: _Desk, told: Told, verdict: Accept) -> None:
    """Keep the report's numbers, and when it tells an end, that end; the lease itself ends with the job's step."""
    report = told.report
    values = facts(report)
    if report.outcome is not None:
        desk.ended[told.stamp] += 1
        values |= {"reported": True, "outcome": report.outcome.value, "reason": verdict.reason}
    else:
        values |= _progress(verdict, report, desk.unit.now)
    desk.book.change(told.key, values)


def _progress(verdict: Accept, report: JobReport, now: datetime) -> dict[str, Any]:
    """Return what an attempt takes from a report that it goes on."""
    started = {"started": report.started or now} if JobCause.STARTED in verdict.causes else {}
    return started | ({"plugged": True} if JobCause.PLUGGED in verdict.causes else {})


def _note_answered(desk: _Desk, told: Told, attempt: AttemptRecord | None) -> None:
    """Ask no more for the killing of an attempt whose end its pilot tells, late as that comes."""
    if attempt is not None and attempt.pilot_stamp == told.stamp and told.report.outcome is not None:
        desk.book.change(told.key, {"reported": True})


def _over(desk: _Desk, taken: AttemptKey, job: JobRecord) -> None:
    """Let a job be matched again whose attempt was taken from the pilot, now that it has told its end."""
    if job.lingers and lingering_of(desk.unit.session, [taken]):
        attempts_over(desk.unit, desk.world, [job.id])
        desk.jobs[job.id] = job._replace(lease_until=None)


def _adopt(desk: _Desk, told: Told, job: JobRecord, attempt: AttemptRecord) -> JobRecord:
    """Take an attempt back that was given up because nothing was heard of it; it is not spent then."""
    now = desk.unit.now
    given_up = attempt.ended or now
    changes = {
        "spent_attempts": max(0, job.spent_attempts - 1),
        "wall_clock": _before(job, given_up),
        "lease_until": now + (job.lease or desk.world.rules.lease),
        "pilot_stamp": attempt.pilot_stamp,
        "queue": attempt.queue,
        "node": attempt.node,
        "slot": attempt.slot,
    }
    reason = f"attempt {attempt.attempt} was heard of again"
    adopted = desk.courses.take(Move(job, JobCause.ADOPTED, told.actor, reason, changes))
    desk.book.change(told.key, {"ended": None, "outcome": "", "reason": ""})
    # What was charged at the end that was none stays charged: the meter goes on where it stopped.
    go_on(desk.unit, desk.world, desk.book, [told.key], given_up)
    return adopted


def _before(job: JobRecord, given_up: datetime) -> timedelta:
    """Return how long the attempts before the adopted one ran; what was counted when that was given up goes back."""
    counted = timedelta(0) if job.started is None else max(timedelta(0), given_up - job.started)
    return max(timedelta(0), job.wall_clock - counted)
