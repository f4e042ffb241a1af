"""New jobs: templates, rows and first events of a whole submission in a few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.job_description import JobDescription
from pilotage_server.core.holds import HoldCode
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.jobs import JobCause, JobState, next_state
from pilotage_server.operations.event_outbox import tell, tell_of_array
from pilotage_server.operations.job_policies import look_at_new
from pilotage_server.operations.placing import Placement
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import NewJob, insert_jobs
from pilotage_server.storage.templates import NewTemplate, insert_templates


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """A description that has been accepted, for one job or for an array, and where it is to wait.

    `hold_reason` "" = it waits; else it is held.
    """

    owner: str
    vo: str
    group: str
    description: JobDescription
    placement: Placement
    hold_reason: str = ""

    @property
    def cause(self) -> JobCause:
        """Return what brings the job out of RECEIVED."""
        return JobCause.HELD if self.hold_reason else JobCause.ENQUEUED


def record_new_jobs(unit: Unit, world: World, accepted: Sequence[AcceptedJob]) -> tuple[int, ...]:
    """Store the jobs and return their ids, descriptions in order, the jobs of an array in order."""
    templates = insert_templates(
        unit.session,
        [NewTemplate(job.owner, job.vo, job.group, job.description, job.description.count or 1) for job in accepted],
    )
    new = [_new_job(world, job, template_id) for job, template_id in zip(accepted, templates, strict=True)]
    arrays = insert_jobs(unit.session, new, unit.now)
    for job, stored, ids in zip(accepted, new, arrays, strict=True):
        _tell(unit, world, job, stored, ids)
    watched = [job_id for stored, ids in zip(new, arrays, strict=True) if stored.watch for job_id in ids]
    if watched:
        look_at_new(unit, world, watched)
    return tuple(job_id for ids in arrays for job_id in ids)


def _new_job(world: World, job: AcceptedJob, template_id: int) -> NewJob:
    return NewJob(
        template_id=template_id,
        owner=job.owner,
        vo=job.vo,
        group=job.group,
        name=job.description.name,
        state=next_state(JobState.RECEIVED, job.cause),
        reason=job.hold_reason,
        priority=job.description.priority,
        task_queue_id=job.placement.task_queue_id,
        pool_id=job.placement.pool_id,
        lease=job.description.lease,
        count=job.description.count or 1,
        watch=world.policy_judge.watch(job.description),
        hold_code=HoldCode.SUBMITTED_ON_HOLD.value if job.hold_reason else None,
    )


def _tell(unit: Unit, world: World, job: AcceptedJob, stored: NewJob, ids: Sequence[int]) -> None:
    first = JobEvent(
        position=0,
        job_id=ids[0],
        time=unit.now,
        from_state=JobState.RECEIVED,
        to_state=stored.state,
        cause=job.cause,
        reason=job.hold_reason,
        attempt=0,
        actor=job.owner,
    )
    if len(ids) > 1:
        tell_of_array(unit, world, stored.template_id, first)
    else:
        tell(unit, world, first)
    if stored.watch:
        unit.after_commit(lambda: world.look_at(ids))
    if stored.state is JobState.WAITING:
        unit.after_commit(lambda: world.enqueued(stored.task_queue_id, ids[0], stored.priority, len(ids)))
