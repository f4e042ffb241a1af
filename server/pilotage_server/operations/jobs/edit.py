"""Edit a waiting or held job: it gets its own description and task queue; the rest of its array stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilotage.errors import InvalidJobError, StateConflictError, Violation
from pilotage.job_description import JobDescription
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.attributes import run_history_of
from pilotage_server.core.jobs.descriptions import description_to_json, single_groups
from pilotage_server.core.jobs.exit_policy import exit_check
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import TRANSITIONS, JobCause, JobState
from pilotage_server.core.submission.optimizers import SubmitCandidate
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.jobs.queries import visible_job
from pilotage_server.operations.jobs.submission import candidate_warnings, optimize
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.submission.templates import (
    NewTemplate,
    insert_templates,
    load_description,
    load_traceparent,
    release_templates,
)


@dataclass(frozen=True, slots=True)
class EditedJob:
    """The edited job and warnings for its owner."""

    job: JobRecord
    warnings: tuple[str, ...]


def edit_job(
    transaction: Transaction, state: ServerState, identity: Identity, job_id: int, description: JobDescription
) -> EditedJob:
    """Replace the description of one job. The optimizers may hold a waiting job, with a reason.

    Raises
    ------
    NotFoundError
        The caller sees no such job.
    StateConflictError
        The job is neither waiting, blocked nor held, or is a race copy.
    InvalidJobError
        With all faults; the paths begin with `description`.
    """
    lock_placement(transaction)
    lock_jobs(transaction.session, [job_id], rivals=transaction.is_retry)
    job = visible_job(transaction, identity, job_id)
    if (job.state, JobCause.EDITED) not in TRANSITIONS:
        what = "only a job that waits, is blocked or is held can be edited"
        raise StateConflictError(f"job {job_id} is {job.state}; {what}")
    if job.is_race_copy:
        raise StateConflictError(f"job {job_id} is a copy of job {job.race}; edit that one")
    candidate = _optimized(transaction, state, job, description)
    edited = _give(transaction, state, job, candidate, identity.owner)
    # A lost attempt of the old description must not be re-adopted.
    attempts.close(transaction.session, (job.id, job.attempt))
    if candidate.hold_reason and edited.state is not JobState.HELD:
        apply_transition(transaction, state, edited, JobCause.HELD, reason=candidate.hold_reason, actor=identity.owner)
    release_templates(transaction.session, {job.template_id: 1})
    return EditedJob(load_job(transaction.session, job_id), tuple(candidate_warnings(candidate, state)))


def _optimized(
    transaction: Transaction, state: ServerState, job: JobRecord, description: JobDescription
) -> SubmitCandidate:
    before = load_description(transaction.session, job.template_id)
    if description.count not in {None, 1, before.count}:
        why = f"{description.count}: a job is edited alone, leave its count as it was"
        raise InvalidJobError(Violation("description.count", why))
    owned = state.rules.submission.owned_names
    set_before = {name: value for name, value in before.attributes.items() if fold(name) in owned}
    # Unchanged values that the server has set are not the caller's.
    wanted = {name: value for name, value in description.attributes.items() if set_before.get(name) != value}
    # Input files are looked up as the owner's, even if an operator edits the job.
    owner = Account(job.vo, job.group, job.owner)
    asked = replace(description, count=None, attributes=wanted)
    (edited,) = optimize(transaction, state, owner, single_groups([asked]), "description.")
    return edited.candidate


def _give(
    transaction: Transaction, state: ServerState, job: JobRecord, candidate: SubmitCandidate, actor: str
) -> JobRecord:
    description = candidate.description
    owner = Account(job.vo, job.group, job.owner)
    text = description_to_json(description)
    traceparent = load_traceparent(transaction.session, job.template_id)
    new = NewTemplate(text, description.input_files, traceparent=traceparent)
    (template_id,) = insert_templates(transaction.session, owner, [new])
    placement = Placer(transaction, state).place(owner, description, run_history_of(job))
    return apply_transition(
        transaction,
        state,
        job,
        JobCause.EDITED,
        reason=candidate.hold_reason or (job.reason if job.state is JobState.HELD else ""),
        actor=actor,
        template_id=template_id,
        name=description.name,
        priority=description.priority,
        lease=description.lease,
        max_starts=description.max_starts or 0,
        exit_check=exit_check(description),
        watch=state.policy_evaluator.watch(description),
        task_queue_id=placement.task_queue_id,
        pool_id=placement.pool_id,
    )
