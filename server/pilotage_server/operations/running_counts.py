"""How many jobs each running limit of a queue counts at present."""

from __future__ import annotations

from pilotage.resource_tree import QueueId
from pilotage_server.core.limits import counts_for, limits_at
from pilotage_server.core.rules import RunningLimit
from pilotage_server.operations.world import World
from pilotage_server.storage import claims
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.task_queues import load_task_queues


def running_counts(unit: Unit, world: World, queue: QueueId) -> dict[RunningLimit, int]:
    """Return for each limit that holds at the queue how many jobs with a lease it counts."""
    return {limit: _count(unit, limit, queue) for limit in limits_at(world.rules.running_limits, queue)}


def locked_running_counts(unit: Unit, world: World, queue: QueueId) -> dict[RunningLimit, int]:
    """Return the same, and let nobody else count these limits until the transaction ends."""
    claims.lock_limits(unit.session, limits_at(world.rules.running_limits, queue))
    return running_counts(unit, world, queue)


def _count(unit: Unit, limit: RunningLimit, queue: QueueId) -> int:
    leased = claims.count_leased(unit.session, queue, limit)
    task_queues = load_task_queues(unit.session, leased)
    return sum(leased[each.id] for each in task_queues if counts_for(limit, each.traits))
