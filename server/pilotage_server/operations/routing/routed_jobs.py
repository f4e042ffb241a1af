"""Routed jobs after their start: reports of job routers, unwanted ones, and giving up those of a lost router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.errors import NotFoundError, StateConflictError
from pilotage.values.attempts import ReportResult
from pilotage.values.leadership import Leadership
from pilotage.values.routing import UnwantedRoutedJob
from pilotage_server.core.attempts.leases import AttemptRecord, gone_reason
from pilotage_server.core.attempts.reports import ReceivedReport
from pilotage_server.core.audit import AuditKind
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.record import JobRecord, router_stamp
from pilotage_server.core.jobs.states import HoldCode, JobCause, JobState
from pilotage_server.core.routing import RoutedJobRecord, RouterReport
from pilotage_server.operations.attempts.reports import record_received
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions, release_fences
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.leadership import lock_leadership
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leadership as stored_leadership
from pilotage_server.storage.attempts import AttemptKey, next_taken, next_unreported
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.routing import (
    binding_attempts,
    forget_router,
    is_known,
    load_routed_jobs,
    set_attributes,
    set_nodes,
    set_references,
)

MAX_GIVEN_UP = 1000
"""Routed jobs that one transaction gives up."""

MAX_UNWANTED = 1000
"""Unwanted routed jobs in one answer."""

MAX_LISTED = 10_000
"""Routed jobs in one answer of a listing."""

MAX_REASON_LENGTH = 200
"""Characters of the reason why a routed job is unwanted."""

FIRST: AttemptKey = (0, 0)
"""The key before all attempts."""


@dataclass(frozen=True, slots=True)
class UnwantedRoutedJobs:
    """Routed jobs to stop, in order; `more` = there are others after them."""

    copies: tuple[UnwantedRoutedJob, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class OpenRoutedJob:
    """A routed job whose end its router has not reported; `unwanted` = why it is to stop, "" = it is not."""

    copy: RoutedJobRecord
    state: JobState
    unwanted: str


@dataclass(frozen=True, slots=True)
class OpenRoutedJobs:
    """Open routed jobs, in order; `more` = there are others after them."""

    copies: tuple[OpenRoutedJob, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class ReleasedRoutedJobs:
    """The routed jobs that were given up, with the present states of their jobs; `more` = the router has others."""

    copies: tuple[OpenRoutedJob, ...]
    more: bool


def report_routed_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    leadership: Leadership,
    reports: Sequence[RouterReport],
) -> tuple[ReportResult, ...]:
    """Record a router's reports and return their results; raises LeadershipLostError."""
    lock_leadership(transaction, leadership)
    lock_jobs(transaction.session, (report.job_id for report in reports), rivals=transaction.is_retry)
    copies = load_routed_jobs(transaction.session, (report.key for report in reports))
    own_keys = {key for key, copy in copies.items() if copy.router == leadership.agent}
    _store_facts(transaction, copies, [report for report in reports if report.key in own_keys])
    stamp = router_stamp(leadership.agent)
    _hold(
        transaction,
        state,
        stamp,
        {report.key: report.held for report in reports if report.held and report.key in own_keys},
    )
    received = [
        ReceivedReport(identity, stamp, stamp, report.report, report.key)
        for report in reports
        if report.report is not None and report.key in own_keys
    ]
    recorded = iter(record_received(transaction, state, received))
    return tuple(
        next(recorded) if report.key in own_keys else ReportResult(*report.key, _foreign_report(report))
        for report in reports
        if report.report is not None
    )


def _foreign_report(report: RouterReport) -> str:
    return f"attempt {report.attempt} of job {report.job_id} does not belong to this router"


def _store_facts(
    transaction: Transaction, copies: dict[tuple[int, int], RoutedJobRecord], reports: Sequence[RouterReport]
) -> None:
    """Store references, nodes and attributes of hooks, before the reports change jobs."""
    references = {each.key: each.reference for each in reports if each.reference}
    new = [(key, reference) for key, reference in references.items() if copies[key].reference != reference]
    if new:
        set_references(transaction.session, new)
    attributes = {each.key: each.attributes for each in reports if each.attributes}
    if attributes:
        set_attributes(transaction.session, list(attributes.items()))
    nodes = {each.key: each.node for each in reports if each.node}
    if nodes:
        set_nodes(transaction.session, list(nodes.items()))


def _hold(transaction: Transaction, state: ServerState, stamp: str, reasons: Mapping[AttemptKey, str]) -> None:
    """Hold the jobs that are held at their targets, as long as these are the present attempts.

    The reason is stored before the router stops the remote job, and the next attempt waits for the end of this one.
    """
    jobs = load_jobs(transaction.session, (job_id for job_id, _ in reasons)).values() if reasons else ()
    held = [job for job in jobs if job.is_leased and (job.id, job.attempt) in reasons]
    code = {"hold_code": int(HoldCode.STARTD_HELD_JOB)}
    apply_transitions(
        transaction, state, [Transition(job, JobCause.HELD, stamp, reasons[job.id, job.attempt], code) for job in held]
    )


def unwanted_routed_jobs(transaction: Transaction, router: str, after: AttemptKey = FIRST) -> UnwantedRoutedJobs:
    """Return a router's next routed jobs whose attempts have been ended here and whose end it has not reported."""
    found = next_taken(transaction.session, router_stamp(router), after, MAX_UNWANTED + 1)
    taken = found[:MAX_UNWANTED]
    unwanted = tuple(UnwantedRoutedJob(*attempt.key, _why_unwanted(attempt)) for attempt in taken)
    return UnwantedRoutedJobs(unwanted, len(found) > len(taken))


def _why_unwanted(attempt: AttemptRecord) -> str:
    return gone_reason(attempt)[:MAX_REASON_LENGTH]


def list_routed_jobs(transaction: Transaction, router: str, after: AttemptKey = FIRST) -> OpenRoutedJobs:
    """Return a router's next routed jobs whose end it has not reported."""
    found = next_unreported(transaction.session, router_stamp(router), after, MAX_LISTED + 1)
    attempts = {attempt.key: attempt for attempt in found[:MAX_LISTED]}
    copies = load_routed_jobs(transaction.session, attempts)
    jobs = load_jobs(transaction.session, (job_id for job_id, _ in copies))
    # A concurrent cleanup may remove a job that ended long ago and whose router was given up.
    listed = tuple(_open(copies[key], attempts[key], jobs[key[0]]) for key in sorted(copies) if key[0] in jobs)
    return OpenRoutedJobs(listed, len(found) > len(attempts))


def _open(copy: RoutedJobRecord, attempt: AttemptRecord, job: JobRecord) -> OpenRoutedJob:
    return OpenRoutedJob(copy, job.state, _why_unwanted(attempt) if attempt.ended is not None else "")


def give_up_routed_jobs(
    transaction: Transaction, state: ServerState, identity: Identity, router: str
) -> ReleasedRoutedJobs:
    """Free at most 1,000 jobs of a router that will never report again; its remote jobs may still run.

    Jobs that it holds are requeued at no cost, and fences for its attempts are released. If the router comes back, its
    routed jobs are unwanted.

    Raises
    ------
    NotFoundError
        There is no such router.
    StateConflictError
        The router is present: a replica of it is the leader.
    """
    term = stored_leadership.lock(transaction.session, router)
    if term is not None and term.remaining(transaction.now):
        raise StateConflictError(f"job router {router} is running at {term.host}; only a lost router can be given up")
    stamp = router_stamp(router)
    found = binding_attempts(transaction.session, stamp, MAX_GIVEN_UP + 1)
    if (
        not found
        and not is_known(transaction.session, router)
        and not next_unreported(transaction.session, stamp, FIRST, 1)
    ):
        raise NotFoundError("job router", router)
    lock_jobs(transaction.session, (job_id for job_id, _ in found[:MAX_GIVEN_UP]))
    still = set(
        binding_attempts(transaction.session, stamp, len(found))
    )  # others may have moved jobs until they were locked
    keys = [key for key in found[:MAX_GIVEN_UP] if key in still]
    jobs = load_jobs(transaction.session, (job_id for job_id, _ in keys)).values()
    reason = f"job router {router} was given up; the job at its target may still run"
    apply_transitions(
        transaction, state, [Transition(job, JobCause.EVICTED, identity.owner, reason) for job in jobs if job.is_leased]
    )
    release_fences(transaction, state, [job.id for job in jobs if job.is_fenced])
    more = len(found) > MAX_GIVEN_UP
    if not more:
        forget_router(transaction.session, router)
    record_change(
        transaction, identity, AuditKind.ROUTES, router, difference=f"- {len(keys)} routed jobs, which are given up"
    )
    copies = load_routed_jobs(transaction.session, keys)
    present = load_jobs(transaction.session, (job_id for job_id, _ in copies))
    return ReleasedRoutedJobs(
        tuple(OpenRoutedJob(copies[key], present[key[0]].state, reason) for key in sorted(copies)), more
    )
