"""Task queues between which jobs were moved: counted anew in memory once that is on disk.

What other transactions have told meanwhile, and what this one tells otherwise, may count in both, or in neither: they
are counted once more when all is quiet.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from pilotage_server.core.waiting import Waiting
from pilotage_server.operations.arrivals import marked
from pilotage_server.operations.world import World
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.first_waiting import read_heads


def recount(unit: Unit, world: World, task_queue_ids: Collection[int]) -> None:
    """Let the memory have after the commit what waits in these task queues now."""
    task_queues = stored.load_task_queues(unit.session, task_queue_ids)
    counts = stored.count_waiting(unit.session, {each.id for each in task_queues})
    heads = read_heads(unit.session, counts)
    waiting = [Waiting(each, counts.get(each.id, 0), heads.get(each.id)) for each in task_queues]
    with marked(unit, world, task_queue_ids):
        unit.after_commit(partial(_count_anew, world, waiting))


def _count_anew(world: World, waiting: Collection[Waiting]) -> None:
    with world.lock:
        for each in waiting:
            world.waiting.count_anew(each.task_queue, each.count, each.head)
