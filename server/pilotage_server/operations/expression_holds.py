"""Jobs with a ClassAd expression that were held until there is a server that evaluates it: this one."""

from __future__ import annotations

from pilotage.job_description import JobDescription
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.optimizers import OWNER_HOLD
from pilotage_server.core.sanity import expression_faults
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.task_queueing import hold_places
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.expression_holds import lock_expression_holds
from pilotage_server.storage.templates import load_descriptions

_BATCH = 500
_RELEASED = "this release of the server evaluates ClassAd expressions"


def release_expression_holds(unit: Unit, world: World) -> int:
    """Release the next of these jobs; return how many were looked at, 0 = there are no more.

    One that its owner wanted held, or whose expression is still not allowed, stays held, with that as the reason.
    """
    hold_places(unit)
    held = lock_expression_holds(unit.session, _BATCH)
    descriptions = load_descriptions(unit.session, {job.template_id for job in held})
    steps(unit, world, [_move(job, descriptions[job.template_id]) for job in held])
    return len(held)


def _move(job: JobRecord, description: JobDescription) -> Move:
    stays = _why_held(description)
    cause, reason = (JobCause.EDITED, stays) if stays else (JobCause.RELEASED, _RELEASED)
    return Move(job, cause, "server", reason)


def _why_held(description: JobDescription) -> str:
    """Return why a job of this description may not wait all the same; empty = it may."""
    for fault in expression_faults(description):
        return f"edit the job: its {fault.where} is not allowed, {fault.why}"
    return OWNER_HOLD if description.hold else ""
