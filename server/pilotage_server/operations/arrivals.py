"""Jobs that come to wait and leave: told when that is on disk, once a task queue, however many jobs come at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.waiting import Head
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit


def arrive(unit: Unit, world: World, comers: Iterable[tuple[int, Head]]) -> None:
    """Tell after the commit that jobs wait, each given by its task queue."""
    heads: dict[int, list[Head]] = defaultdict(list)
    for task_queue_id, head in comers:
        heads[task_queue_id].append(head)

    def tell() -> None:
        for task_queue_id, came in heads.items():
            first = min(came, key=lambda head: head.order)
            world.enqueued(task_queue_id, first.job_id, first.priority, len(came))

    if heads:
        unit.after_commit(tell)


def depart(unit: Unit, world: World, jobs: Sequence[JobRecord]) -> None:
    """Tell after the commit that jobs, as they were, wait no more."""

    def tell() -> None:
        for job in jobs:
            world.dequeued(job.task_queue_id, job.id)

    if jobs:
        unit.after_commit(tell)
