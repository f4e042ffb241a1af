"""Task queues keyed anew when running limits refer to other attributes of jobs than they did before."""

from __future__ import annotations

from pilotage_server.core.task_queues import TaskQueue, referred_attributes, with_attributes
from pilotage_server.operations.load_world import refresh_world
from pilotage_server.operations.task_queueing import task_queue_of
from pilotage_server.operations.world import World
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.templates import load_descriptions


def rekey_for_limits(unit: Unit, world: World) -> int:
    """Move live jobs to the task queues that the limits in force tell apart; return how many task queues changed.

    To be called once at a server's start: limits change with its settings only. Descriptions are read once an
    array, and only for task queues that do not fit the limits.
    """
    changed = sum(_rekey(unit, world, task_queue) for task_queue in stored.load_live_task_queues(unit.session))
    if changed:
        # before the commit, which elsewhere nothing does: a server whose first transaction fails does not start
        refresh_world(unit, world)
    return changed


def _rekey(unit: Unit, world: World, task_queue: TaskQueue) -> bool:
    names = world.rules.key_attributes()
    templates = stored.templates_of(unit.session, task_queue.id)
    moved = False
    for template_id, description in load_descriptions(unit.session, templates).items():
        attributes = referred_attributes(description.attributes, names)
        if attributes == task_queue.traits.attributes:
            continue
        new_id = task_queue_of(unit, world, with_attributes(task_queue.traits, attributes))
        stored.move_live_jobs(unit.session, task_queue.id, template_id, new_id)
        moved = True
    return moved
