"""What other servers on the same database do to waiting jobs: taken in as the feed tells it.

It costs what the others do, not what there is. What the feed does not tell, such as a tree that moves jobs to other
task queues, is found when all is counted again (`load_world.refresh_world`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pilotage_server.core.waiting import Head
from pilotage_server.operations.running_counts import hear_of_counts
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import feed_bounds
from pilotage_server.storage.following import Turnover, turnover_in


def follow(unit: Unit, world: World) -> int:
    """Take in what others have done since the last time; return how many events that were, of whatever kind."""
    if world.others is None:
        return 0
    with world.following:  # several duties follow: what two of them found at once would count twice
        _, newest = feed_bounds(unit.session)
        ranges = world.others.unheard(newest)
        turnover = turnover_in(unit.session, ranges) if ranges else []
        _take_in(world, turnover)
        hear_of_counts(unit, world)
        world.others.heard(newest)
    return sum(last - first + 1 for first, last in ranges)


def _take_in(world: World, turnover: Iterable[Turnover]) -> None:
    came: dict[int, list[Head]] = defaultdict(list)
    left: dict[int, list[int]] = defaultdict(list)
    for step in turnover:
        if step.came:
            came[step.task_queue_id].append(Head(step.priority, step.job_id))
        else:
            left[step.task_queue_id].append(step.job_id)
    for task_queue_id, heads in came.items():
        first = min(heads, key=lambda head: head.order)
        world.enqueued(task_queue_id, first.job_id, first.priority, len(heads))
    with world.lock:
        for task_queue_id, job_ids in left.items():
            world.waiting.gone(task_queue_id, job_ids)
