"""Records reports of attempts, from pilots and job routers: in batches where possible, else one by one.

Both ways leave the same rows in the database and the same server state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import assert_never

from pilotage.values.attempts import ReportResult
from pilotage_server.core.attempts.leases import (
    Accept,
    AttemptRecord,
    Refuse,
    Repeat,
    ReportBatch,
    batch_candidates,
    batches_of,
    changes_by_report,
    judge_report,
    metering_start,
    wall_clock_before,
)
from pilotage_server.core.attempts.reports import JobReport, ReceivedReport
from pilotage_server.core.containers import batch_by_key
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.periodic_policies import UNDER_POLICY
from pilotage_server.core.jobs.record import FeedEvent, JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.operations.accounting.limits import count_ended
from pilotage_server.operations.accounting.usage import (
    begin_metering,
    correct_sums,
    count_reported,
    resume_metering,
    stop_metering,
)
from pilotage_server.operations.attempts.events import publish_events, publish_parent_events
from pilotage_server.operations.attempts.exits import AttemptEnd, ExitPolicies
from pilotage_server.operations.attempts.outputs import OutputBook
from pilotage_server.operations.attempts.pilot_calls import credential_of
from pilotage_server.operations.attempts.transitions import (
    LostAttempt,
    Transition,
    TransitionBatch,
    lost_transition,
    release_fences,
)
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import AttemptBook, AttemptKey, change_columns, facts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import change_locked, load_jobs
from pilotage_server.storage.leases import fenced_of, load_held
from pilotage_server.storage.pilots import count_ended_jobs


def record_reports(
    transaction: Transaction, state: ServerState, calls: Sequence[tuple[Identity, Sequence[JobReport]]]
) -> list[tuple[ReportResult, ...]]:
    """Record the reports of pilots, and return the results for each call, in order.

    The jobs must be locked (`leases.lock_jobs`). Raises PermissionDeniedError if a caller is not a pilot.
    """
    received = [each for caller, reports in calls for each in received_from(caller, reports)]
    results = iter(record_received(transaction, state, received))
    return [tuple(islice(results, len(reports))) for _, reports in calls]


def received_from(identity: Identity, reports: Sequence[JobReport]) -> list[ReceivedReport]:
    """Return the reports with the pilot that sent them; raises PermissionDeniedError for other callers."""
    stamp = credential_of(identity).stamp
    actor = f"pilot:{stamp}"
    return [ReceivedReport(identity, stamp, actor, report, (report.job_id, report.attempt)) for report in reports]


def record_received(
    transaction: Transaction, state: ServerState, received: Sequence[ReceivedReport]
) -> list[ReportResult]:
    """Record reports of attempts whose jobs are locked, and return the results, in order."""
    ended: Counter[str] = Counter()
    batched = record_batches(transaction, state, received, ended)
    rest = [index for index in range(len(received)) if index not in batched]
    refusals = dict(
        zip(rest, record_singly(transaction, state, [received[index] for index in rest], ended), strict=True)
    )
    count_ended_jobs(transaction.session, ended)  # once for all, because it locks the rows of the pilots in one order
    return [ReportResult(*each.key, refusals.get(index, "")) for index, each in enumerate(received)]


def record_batches(
    transaction: Transaction, state: ServerState, received: Sequence[ReceivedReport], ended: Counter[str]
) -> set[int]:
    """Record the reports that can be batched and return their indexes; `ended` counts ended jobs by pilot."""
    candidates = batch_candidates(received)
    if not candidates:
        return set()
    held = load_held(transaction.session, [received[index].report.job_id for index in candidates])
    recorded: set[int] = set()
    for batch in batches_of(received, candidates, held, transaction.now):
        recorded.update(batch.indexes)
        if batch.steps:
            _record_batch(transaction, state, batch)
        if batch.ends:
            ended.update([job.pilot_stamp for job in batch.jobs])
    return recorded


def _record_batch(transaction: Transaction, state: ServerState, batch: ReportBatch) -> None:
    jobs = batch.jobs
    if batch.starts_metering:
        begin_metering(transaction, state, jobs)
    change_locked(transaction.session, [job.job_id for job in jobs], batch.job_changes(transaction.now))
    change_columns(transaction.session, [each.key for each in batch.received], batch.attempt_changes(transaction.now))
    if batch.ends:
        stop_metering(transaction, state, jobs)
        count_reported(transaction, state, batch)
        count_ended(transaction, state, [(job.queue, job.task_queue_id) for job in jobs])
    publish_parent_events(transaction, state, batch.awaited_jobs)
    watched = [job.job_id for job in jobs if job.is_watched]
    if watched and batch.steps[-1].after in UNDER_POLICY:
        transaction.after_commit(partial(state.add_policy_checks, watched))
    for before, cause, after, why in batch.steps:
        pairs = zip(jobs, batch.received, strict=True)
        events = [
            FeedEvent(0, job.job_id, transaction.now, before, after, cause, why, job.attempt, each.actor)
            for job, each in pairs
        ]
        publish_events(transaction, state, *events)


def record_singly(
    transaction: Transaction, state: ServerState, received: Sequence[ReceivedReport], ended: Counter[str]
) -> list[str]:
    """Record reports one by one and return the refusals, "" = recorded; `ended` counts ended jobs by pilot."""
    if not received:
        return []
    book = AttemptBook(transaction.session)
    jobs = load_jobs(transaction.session, [each.report.job_id for each in received])
    book.read(each.key for each in received)
    outputs = OutputBook(transaction, state.rules.jobs)
    outputs.read((each.identity, each.key, each.report.output_files) for each in received if each.report.output_files)
    exits = ExitPolicies(transaction, state, jobs.values())
    recorder = _Recorder(
        transaction, state, jobs, book, TransitionBatch(transaction, state, book), outputs, exits, ended
    )
    refusals: dict[int, str] = {}
    for batch in batch_by_key(each.report.job_id for each in received):
        for index in batch:
            refusals[index] = recorder.record(received[index])
        recorder.jobs.update(recorder.transitions.store())
    exits.release_templates()
    outputs.write()
    recorder.transitions.settle_races()
    return [refusals[index] for index in range(len(received))]


_LOSSES = frozenset({JobCause.START_FAILED, JobCause.LEASE_LOST})
_ENDS = frozenset({JobCause.DONE, JobCause.FAILED})


@dataclass(slots=True)
class _Recorder:
    """Records reports one by one; has their jobs and attempts as the reports before have left them."""

    transaction: Transaction
    state: ServerState
    jobs: dict[int, JobRecord]
    book: AttemptBook
    transitions: TransitionBatch
    outputs: OutputBook
    exits: ExitPolicies
    ended: Counter[str]

    def record(self, received: ReceivedReport) -> str:
        """Record a report and return the refusal, "" = it was recorded."""
        attempt = self.book.get(received.key)
        verdict = judge_report(self.jobs.get(received.report.job_id), attempt, received.report, received.stamp)
        match verdict:
            case Accept():
                assert attempt is not None, "only what is there is accepted"
                self._accept(received, verdict, attempt)
                return ""
            case Repeat():
                return ""
            case Refuse(refusal):
                self._mark_reported(received, attempt)
                return refusal
            case _:
                assert_never(verdict)

    def _accept(self, received: ReceivedReport, verdict: Accept, attempt: AttemptRecord) -> None:
        """Apply a report to its attempt and its job."""
        job = self.jobs[received.report.job_id]
        if verdict.adopts:
            job = self._adopt(received, job, attempt)
        self._store_facts(received, verdict)
        if attempt.ended is not None and not attempt.reported and not verdict.adopts:
            correct_sums(self.transaction, self.state, job, attempt, self.book.known(received.key))
        if attempt.metered is None and JobCause.STARTED in verdict.causes:
            since = metering_start(received.report, attempt.matched, self.transaction.now)
            resume_metering(self.transaction, self.state, self.book, [received.key], since)
        reason, files = verdict.reason, received.report.output_files
        if files:
            notes = self.outputs.keep(received.identity, received.key, files)
            reason = "; ".join(filter(None, (reason, *notes)))
        if not verdict.causes and received.report.outcome is not None:
            self._release_fence(received.key, job)
        for cause in verdict.causes:
            why = reason if cause is verdict.causes[-1] else ""
            if verdict.spends and cause in _LOSSES:
                self.book.write()  # the history of a job that fails includes this report of its last attempt
                job = self.transitions.add(
                    lost_transition(self.transaction, self.state, LostAttempt(job, cause, why), received.actor)
                )
            else:
                changes = changes_by_report(received.report, job, cause, attempt.matched, self.transaction.now)
                step = AttemptEnd(cause, why, changes)
                if job.exit_check and cause in _ENDS:
                    step = self.exits.decided(job, received.report, step)
                job = self.transitions.add(Transition(job, step.cause, received.actor, step.reason, step.changes))

    def _store_facts(self, received: ReceivedReport, verdict: Accept) -> None:
        """Store the numbers of a report with its attempt, and an outcome; the lease itself ends with the job's step."""
        report = received.report
        values = facts(report)
        if report.outcome is not None:
            self.ended[received.stamp] += 1
            values |= {"reported": True, "outcome": report.outcome.value, "reason": verdict.reason}
        if report.outcome is None and JobCause.STARTED in verdict.causes:
            values["started"] = report.started or self.transaction.now
        if report.outcome is None and JobCause.PLUGGED in verdict.causes:
            values["plugged"] = True
        self.book.change(received.key, values)

    def _mark_reported(self, received: ReceivedReport, attempt: AttemptRecord | None) -> None:
        """Stop asking the pilot to kill an attempt: a refused report has named its outcome."""
        if attempt is not None and attempt.pilot_stamp == received.stamp and received.report.outcome is not None:
            self.book.change(received.key, {"reported": True})

    def _release_fence(self, taken: AttemptKey, job: JobRecord) -> None:
        """Release the fence of a job whose attempt was taken from the pilot and has ended there now."""
        if job.is_fenced and fenced_of(self.transaction.session, [taken]):
            release_fences(self.transaction, self.state, [job.id])
            self.jobs.update(load_jobs(self.transaction.session, [job.id]))

    def _adopt(self, received: ReceivedReport, job: JobRecord, attempt: AttemptRecord) -> JobRecord:
        """Return an attempt to its pilot that was given up for silence; it does not count as spent."""
        now = self.transaction.now
        given_up = attempt.ended or now
        correct_sums(self.transaction, self.state, job, attempt, None)
        changes = {
            "spent_attempts": max(0, job.spent_attempts - 1),
            "wall_clock": wall_clock_before(job, given_up),
            "lease_until": now + (job.lease or self.state.rules.lease),
            "pilot_stamp": attempt.pilot_stamp,
            "queue": attempt.queue,
            "node": attempt.node,
            "slot": attempt.slot,
        }
        reason = f"attempt {attempt.attempt} was reported again"
        adopted = self.transitions.add(Transition(job, JobCause.ADOPTED, received.actor, reason, changes))
        self.book.change(received.key, {"ended": None, "outcome": "", "reason": ""})
        # The charge made when the attempt was given up stays, so the meter continues from that moment.
        resume_metering(self.transaction, self.state, self.book, [received.key], given_up)
        return adopted
