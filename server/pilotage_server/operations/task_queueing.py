"""The task queue that a job belongs in: found by its traits, made when there is none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pilotage.job_description import JobDescription
from pilotage.requirements import read_requirements
from pilotage_server.core.task_queues import Account, TaskQueue, Traits, traits_of
from pilotage_server.operations.pools import ensure_pool
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.task_queues import find_or_insert


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job waits; `pool_id` "" = it has no Requirements section."""

    task_queue_id: int
    pool_id: str


def place(unit: Unit, world: World, owner: str, vo: str, group: str, description: JobDescription) -> Placement:
    """Return where a job of this description waits; its pool and its task queue are made when they are new.

    Raises
    ------
    InvalidRequirementsError
        The Requirements section has no meaning.
    """
    section = description.requirements
    requirements = read_requirements(section, vo, world.tree.declarations) if section else None
    pool_id = ensure_pool(unit, world, requirements)
    traits = traits_of(Account(vo, group, owner), pool_id, description, world.rules.key_attributes())
    return Placement(task_queue_of(unit, world, traits), pool_id)


def task_queue_of(unit: Unit, world: World, traits: Traits) -> int:
    """Return the id of the task queue with these traits, made when there is none."""
    task_queue = find_or_insert(unit.session, traits, unit.now)
    unit.after_commit(partial(_take_in, world, task_queue))
    return task_queue.id


def _take_in(world: World, task_queue: TaskQueue) -> None:
    with world.lock:
        world.waiting.take_in(task_queue)
