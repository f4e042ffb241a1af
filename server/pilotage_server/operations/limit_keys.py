"""Task queues keyed anew when running limits refer to other attributes of jobs than they did before."""

from __future__ import annotations

from pilotage_server.core.task_queues import TaskQueue, redescribed
from pilotage_server.operations.load_world import refresh_world
from pilotage_server.operations.task_queueing import TaskQueues, key_names
from pilotage_server.operations.world import World
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.templates import load_descriptions


def rekey_for_limits(unit: Unit, world: World) -> int:
    """Move live jobs to the task queues that the limits in force tell apart; return how many task queues changed.

    To be called once at a server's start: limits change with its settings only. Those with a lease move too, for
    limits count them. Descriptions are read once an array.
    """
    if not world.rules.key_attributes():
        return 0
    names = key_names(unit, world)
    live = stored.load_live_task_queues(unit.session)
    task_queues = TaskQueues(unit, world)
    changed = sum(_rekey(unit, task_queues, task_queue, names) for task_queue in live)
    if changed:
        # before the commit, which elsewhere nothing does: a server whose first transaction fails does not start
        refresh_world(unit, world)
    return changed


def _rekey(unit: Unit, task_queues: TaskQueues, task_queue: TaskQueue, names: frozenset[str]) -> bool:
    templates = stored.templates_of(unit.session, task_queue.id)
    moved = False
    for template_id, description in load_descriptions(unit.session, templates).items():
        traits = redescribed(task_queue.traits, description, names)
        if traits == task_queue.traits:
            continue
        after = task_queues.id_of(traits)
        if after != task_queue.id:
            stored.move_live_jobs(unit.session, task_queue.id, template_id, after)
            moved = True
    return moved
