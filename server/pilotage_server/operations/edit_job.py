"""Edit a waiting or held job: a description of its own, a new place to wait; the rest of its array stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pilotage.errors import InvalidJobError, StateConflictError, Violation
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage_server.core.accounting import Account
from pilotage_server.core.alike import alone
from pilotage_server.core.description_json import description_to_json
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_attributes import past_of
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import TRANSITIONS, JobCause, JobState
from pilotage_server.core.optimizers import Candidate
from pilotage_server.operations.job_steps import step
from pilotage_server.operations.placing import Placer
from pilotage_server.operations.query_jobs import visible_job
from pilotage_server.operations.submit import candidate_warnings, optimized
from pilotage_server.operations.task_queueing import hold_places
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.templates import NewTemplate, insert_templates, load_description, release_templates


@dataclass(frozen=True, slots=True)
class Edited:
    """The job as it is now, and what its owner should know."""

    job: JobRecord
    warnings: tuple[str, ...]


def edit_job(unit: Unit, world: World, identity: Identity, job_id: int, description: JobDescription) -> Edited:
    """Give one job a new description. A waiting job that may no longer wait is held, with the reason.

    Raises
    ------
    NotFoundError
        There is no such job that the caller may see.
    StateConflictError
        The job neither waits nor is held, or is a copy of another.
    InvalidJobError
        With every fault; the paths begin with `description`.
    """
    hold_places(unit)
    lock_jobs(unit.session, [job_id], rivals=unit.again)
    job = visible_job(unit, identity, job_id)
    if (job.state, JobCause.EDITED) not in TRANSITIONS:
        raise StateConflictError(f"job {job_id} is {job.state}; only a job that waits or is held can be edited")
    if job.is_copy:
        raise StateConflictError(f"job {job_id} is a copy of job {job.race}; edit that one")
    candidate = _optimized(unit, world, job, description)
    edited = _give(unit, world, job, candidate, identity.owner)
    # What ran by the former description and was given up is not the job's outcome any more, should it turn up.
    attempts.close(unit.session, (job.id, job.attempt))
    if candidate.hold_reason and edited.state is JobState.WAITING:
        step(unit, world, edited, JobCause.HELD, reason=candidate.hold_reason, actor=identity.owner)
    release_templates(unit.session, {job.template_id: 1})
    return Edited(load_job(unit.session, job_id), tuple(candidate_warnings(candidate, world)))


def _optimized(unit: Unit, world: World, job: JobRecord, description: JobDescription) -> Candidate:
    before = load_description(unit.session, job.template_id)
    if description.count not in {None, 1, before.count}:
        why = f"{description.count}: a job is edited alone, leave its count as it was"
        raise InvalidJobError(Violation("description.count", why))
    owned = world.rules.submission.owned
    set_before = {name: value for name, value in before.attributes.items() if fold(name) in owned}
    # What comes back as the server had set it is nobody's wish.
    wanted = {name: value for name, value in description.attributes.items() if set_before.get(name) != value}
    # Files that the job brought count as its owner's, whoever edits it.
    owner = Account(job.vo, job.group, job.owner)
    asked = replace(description, count=None, attributes=wanted)
    (edited,) = optimized(unit, world, owner, alone([asked]), "description.")
    return edited.candidate


def _give(unit: Unit, world: World, job: JobRecord, candidate: Candidate, actor: str) -> JobRecord:
    description = candidate.description
    owner = Account(job.vo, job.group, job.owner)
    text = description_to_json(description)
    (template_id,) = insert_templates(unit.session, owner, [NewTemplate(text, description.input_files)])
    placement = Placer(unit, world).place(owner, description, past_of(job))
    return step(
        unit,
        world,
        job,
        JobCause.EDITED,
        reason=candidate.hold_reason or (job.reason if job.state is JobState.HELD else ""),
        actor=actor,
        template_id=template_id,
        name=description.name,
        priority=description.priority,
        lease=description.lease,
        watch=world.policy_judge.watch(description),
        task_queue_id=placement.task_queue_id,
        pool_id=placement.pool_id,
    )
