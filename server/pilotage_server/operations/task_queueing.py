"""The task queue that a job belongs in: found by its traits, made when there is none, left when its past changes."""

from __future__ import annotations

from collections.abc import Collection, Set
from functools import partial

from pilotage_server.core.accounting import Account
from pilotage_server.core.job_attributes import past_of
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.task_queues import TaskQueue, Traits, traits_of
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.holdings import pools_now
from pilotage_server.storage.significant_attributes import hold_significant
from pilotage_server.storage.task_queues import find_or_insert, load_task_queues
from pilotage_server.storage.templates import load_descriptions
from pilotage_server.storage.trees import hold_tree


def hold_places(unit: Unit) -> frozenset[str]:
    """Let what decides where jobs belong stay as it is until the commit: the tree and what is referred to.

    To be called before jobs are locked, as who changes these takes jobs too, or the two could wait for each other.
    Returns the folded names of what is referred to.
    """
    hold_tree(unit.session)  # always first
    return hold_significant(unit.session)


def key_names(unit: Unit, world: World) -> frozenset[str]:
    """Return the folded names of the attributes that tell task queues apart, which stay these until the commit."""
    return hold_places(unit) | world.rules.key_attributes()


def task_queues_of(unit: Unit, world: World, ids: Set[int]) -> dict[int, TaskQueue]:
    """Return the task queues of these ids, which jobs are in, by id: from the memory, else from the database."""
    with world.lock:
        known = {id_: world.waiting.task_queue(id_) for id_ in ids}
    found = {id_: task_queue for id_, task_queue in known.items() if task_queue is not None}
    return found | {each.id: each for each in load_task_queues(unit.session, ids - found.keys())}


class TaskQueues:
    """Finds task queues, makes those that are new, and remembers them as long as its transaction lasts."""

    def __init__(self, unit: Unit, world: World) -> None:
        self._unit = unit
        self._world = world
        self._ids: dict[Traits, int] = {}
        self._limited = world.rules.key_attributes()

    def id_of(self, traits: Traits) -> int:
        """Return the id of the task queue for jobs with these traits."""
        values = self._world.waiting.values
        with self._world.lock:
            admitted = values.admitted(traits, kept=self._limited)
        if admitted not in self._ids:
            task_queue = find_or_insert(self._unit.session, admitted, self._unit.now)
            with self._world.lock:  # at once, for one transaction may bring many values
                values.note(task_queue)
            self._unit.after_commit(partial(_take_in, self._world, task_queue))
            self._ids[admitted] = task_queue.id
        return self._ids[admitted]


def placed_again(
    unit: Unit, world: World, comers: Collection[JobRecord], pooled: Collection[int] = ()
) -> dict[int, int]:
    """Return in which task queues jobs that come back to wait belong now, by the ids of the jobs.

    The pools of those in `pooled` have just been found; the others may be in other pools than when they were loaded.
    """
    if not comers:
        return {}
    names = key_names(unit, world)
    pools = pools_now(unit.session, [job.id for job in comers if job.id not in pooled])
    descriptions = load_descriptions(unit.session, {job.template_id for job in comers})
    task_queues = TaskQueues(unit, world)
    placed: dict[int, int] = {}
    for job in comers:
        account = Account(job.vo, job.group, job.owner)
        traits = traits_of(account, pools.get(job.id, job.pool_id), descriptions[job.template_id], names, past_of(job))
        placed[job.id] = task_queues.id_of(traits)
    return placed


def _take_in(world: World, task_queue: TaskQueue) -> None:
    with world.lock:
        world.waiting.take_in(task_queue)
