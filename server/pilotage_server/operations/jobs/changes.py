"""Remove, hold, release and reschedule jobs; each job gets its own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobDescription
from pilotage.values.accounts import Account
from pilotage.values.jobs import ChangeResult
from pilotage_server.core.audit import AuditKind, cut, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import CAUSES, JobChange, may_change, refusal_of
from pilotage_server.core.jobs.conditions import JobQuery
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.jobs.conditions import still_met
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.submission.templates import load_descriptions

_TO_WAITING = frozenset({JobChange.RELEASE, JobChange.RESCHEDULE})


def change_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    job_ids: Sequence[int],
    change: JobChange,
    reason: str,
    only: JobQuery | None = None,
) -> tuple[ChangeResult, ...]:
    """Apply the change where it is allowed, and return one result for each id, in the requested order.

    `only` = a query that each job must still meet; None = none.
    """
    if change in _TO_WAITING:
        lock_placement(transaction)
    # Locked, because an edit could change the pool of a job.
    lock_jobs(transaction.session, job_ids, rivals=transaction.is_retry)
    loaded = load_jobs(transaction.session, job_ids).values()
    jobs = {job.id: job for job in loaded if may_change(identity, job.owner, job.vo)}
    descriptions: Mapping[int, JobDescription] = {}
    if change in _TO_WAITING:
        descriptions = load_descriptions(transaction.session, (job.template_id for job in jobs.values()))
    placer = Placer(transaction, state)
    why = reason or f"{CAUSES[change]} by {identity.owner}"
    refusals: dict[int, str] = {}
    transitions: list[Transition] = []
    met = jobs.keys() if only is None else still_met(transaction, only, jobs.values())
    for job in jobs.values():
        description = descriptions.get(job.template_id)
        if job.id not in met:
            refusals[job.id] = f"job {job.id} is {job.state} now; it does not meet the condition any more"
            continue
        decided = decided_changes(placer, job, change, description, is_bound=not identity.sees_everything)
        if isinstance(decided, str):
            refusals[job.id] = decided
        else:
            transitions.append(Transition(job, CAUSES[change], identity.owner, why, decided))
    moved = apply_transitions(transaction, state, transitions)
    states = {record.id: record.state for record in moved if record is not None}
    _record_for_others(transaction, identity, [jobs[job_id] for job_id in states], change, reason)
    return tuple(_result(job_id, jobs.get(job_id), states, refusals) for job_id in job_ids)


def _record_for_others(
    transaction: Transaction, identity: Identity, changed: Sequence[JobRecord], change: JobChange, reason: str
) -> None:
    """Store in the audit what an operator does with the jobs of others; owners find it in the events of their jobs."""
    owners = sorted({str(Account(job.vo, job.group, job.owner)) for job in changed if job.owner != identity.owner})
    if not owners or not identity.sees_everything:
        return
    subject = cut(f"{len(changed)} job{'s' if len(changed) > 1 else ''} of {', '.join(owners)}")
    done = line_difference([], (f"{change} job {job.id}, which was {job.state}" for job in changed))
    record_change(transaction, identity, AuditKind.JOBS, subject, difference=done, reason=reason)


def decided_changes(
    placer: Placer, job: JobRecord, change: JobChange, description: JobDescription | None, *, is_bound: bool = True
) -> Mapping[str, Any] | str:
    """Return the changes of the record beside the state, or why the change is refused.

    `description` None = the job will not wait and needs no pool. `is_bound` = the limit of releases applies.
    """
    most = placer.state.rules.policies.max_releases if is_bound else None
    refusal = refusal_of(job, change, most)
    if refusal or description is None:
        return refusal or {}
    try:
        return {"pool_id": placer.pool_of(job.vo, description)}
    except InvalidRequirementsError as error:
        # The active tree may declare a parameter in another way than the tree at submission.
        return f"job {job.id} stays {job.state}: {error}"


def _result(
    job_id: int, job: JobRecord | None, states: Mapping[int, JobState], refusals: Mapping[int, str]
) -> ChangeResult:
    if job is None:
        return ChangeResult(job_id, "", f"there is no job {job_id}")
    if job_id in states:
        return ChangeResult(job_id, states[job_id])
    return ChangeResult(job_id, job.state, refusals.get(job_id, "the job was changed at the same time; try again"))
