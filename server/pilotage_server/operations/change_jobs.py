"""Remove, hold, release and reschedule jobs; each job gets its own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobDescription
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_changes import CAUSES, JobChange, may_see, refusal_of
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.placing import Placer
from pilotage_server.operations.task_queueing import hold_places
from pilotage_server.operations.world import World
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.templates import load_descriptions

_TO_WAITING = frozenset({JobChange.RELEASE, JobChange.RESCHEDULE})


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What became of one job; `state` None = there is none such; `refusal` "" = the change was made."""

    job_id: int
    state: JobState | None
    refusal: str = ""


def change_jobs(
    unit: Unit, world: World, identity: Identity, job_ids: Sequence[int], change: JobChange, reason: str
) -> tuple[ChangeResult, ...]:
    """Make the change wherever it can be made, and return one result for each id, in the order asked."""
    if change in _TO_WAITING:
        hold_places(unit)
    # Where a job belongs is decided by what is not edited meanwhile.
    lock_jobs(unit.session, job_ids, rivals=unit.again)
    loaded = load_jobs(unit.session, job_ids).values()
    jobs = {job.id: job for job in loaded if may_see(identity, job.owner, job.vo)}
    descriptions: Mapping[int, JobDescription] = {}
    if change in _TO_WAITING:
        descriptions = load_descriptions(unit.session, (job.template_id for job in jobs.values()))
    placer = Placer(unit, world)
    why = reason or f"{CAUSES[change]} by {identity.owner}"
    refusals: dict[int, str] = {}
    moves: list[Move] = []
    for job in jobs.values():
        description = descriptions.get(job.template_id)
        decided = what_changes(placer, job, change, description, is_bound=not identity.sees_everything)
        if isinstance(decided, str):
            refusals[job.id] = decided
        else:
            moves.append(Move(job, CAUSES[change], identity.owner, why, decided))
    moved = steps(unit, world, moves)
    states = {record.id: record.state for record in moved if record is not None}
    return tuple(_result(job_id, jobs.get(job_id), states, refusals) for job_id in job_ids)


def what_changes(
    placer: Placer, job: JobRecord, change: JobChange, description: JobDescription | None, *, is_bound: bool = True
) -> Mapping[str, Any] | str:
    """Return what changes in the record beside the state, or why the change is refused.

    `description` None = the job is not going to wait, so it needs no place. `is_bound` = the limit of releases
    holds for who wants it.
    """
    most = placer.world.rules.policies.max_releases if is_bound else None
    refusal = refusal_of(job, change, most)
    if refusal or description is None:
        return refusal or {}
    try:
        return {"pool_id": placer.pool_of(job.vo, description)}
    except InvalidRequirementsError as error:
        # The tree in force may declare a parameter otherwise than the one that the job was accepted under.
        return f"job {job.id} stays {job.state}: {error}"


def _result(
    job_id: int, job: JobRecord | None, states: Mapping[int, JobState], refusals: Mapping[int, str]
) -> ChangeResult:
    if job is None:
        return ChangeResult(job_id, None, f"there is no job {job_id}")
    if job_id in states:
        return ChangeResult(job_id, states[job_id])
    return ChangeResult(job_id, job.state, refusals.get(job_id, "somebody else was changing the job; ask again"))
