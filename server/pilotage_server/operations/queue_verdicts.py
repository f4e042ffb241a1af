"""What stands against a job on queues, for those who explain: the evaluator's own words, and the mapping's."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.bans import active_bans
from pilotage.effective import EffectiveQueue
from pilotage.eligibility import Refusal, Refused, Verdict
from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.job_description import JobDescription
from pilotage.job_fit import full_verdict
from pilotage.requirements import read_requirements
from pilotage.resource_tree import QueueId
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit


def queue_verdicts(
    unit: Unit, world: World, description: JobDescription, task_queue: TaskQueue
) -> dict[QueueId, Verdict]:
    """Return what stands against a job of the task queue on every queue, in the order of the tree."""
    return _verdicts(unit, world, description, task_queue, world.tree.as_seen_by(task_queue.traits.account.vo))


def queue_verdict(
    unit: Unit, world: World, description: JobDescription, task_queue: TaskQueue, queue: QueueId
) -> Verdict | None:
    """Return what stands against it on one queue; None = the tree does not have it."""
    effective = world.tree.effective(queue, task_queue.traits.account.vo)
    return None if effective is None else _verdicts(unit, world, description, task_queue, {queue: effective})[queue]


def _verdicts(
    unit: Unit,
    world: World,
    description: JobDescription,
    task_queue: TaskQueue,
    view: Mapping[QueueId, EffectiveQueue],
) -> dict[QueueId, Verdict]:
    section, vo = description.requirements, task_queue.traits.account.vo
    try:
        requirements = read_requirements(section, vo, world.tree.declarations) if section else None
    except InvalidRequirementsError as error:
        # A tree that came later has left them without a meaning; then no queue satisfies them.
        return dict.fromkeys(view, Refused(tuple(_meaningless(violation) for violation in error.violations)))
    return {
        queue: full_verdict(
            requirements,
            task_queue.needs,
            effective,
            active_bans(world.bans, queue, unit.now),
            unit.now,
        )
        for queue, effective in view.items()
    }


def _meaningless(violation: Violation) -> Refusal:
    """Return the refusal that a requirement without a meaning gets from every queue."""
    return Refusal(violation.where, None, None, (), violation.why)


def mapping_obstacle(world: World, task_queue: TaskQueue, queue: QueueId) -> str:
    """Return why the jobs of the task queue cannot go to a queue that nothing else stands against; "" = they can."""
    mapping = world.mappings.get(task_queue.pool_id)
    if task_queue.pool_id and (mapping is None or mapping.mapped is None):
        return "its pool has no mapping at present"
    if not world.reach.can_go(task_queue, queue):
        return "the pool's mapping, which is older than the tree, does not have this queue yet"
    return ""
