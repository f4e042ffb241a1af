"""Jobs that come to wait, told when that is on disk, and jobs that wait no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.waiting import Head
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit


def arrive(unit: Unit, world: World, comers: Iterable[tuple[int, Head]]) -> None:
    """Tell after the commit that jobs wait, each given by its task queue; those of one task queue together."""
    heads: dict[int, list[Head]] = defaultdict(list)
    for task_queue_id, head in comers:
        heads[task_queue_id].append(head)
    for task_queue_id, came in heads.items():
        arrive_together(unit, world, task_queue_id, min(came, key=lambda head: head.order), len(came))


def arrive_together(unit: Unit, world: World, task_queue_id: int, first: Head, count: int) -> None:
    """Tell after the commit that so many jobs wait in a task queue, the first of them given."""
    with marked(unit, world, [task_queue_id]):
        unit.after_commit(partial(world.enqueued, task_queue_id, first.job_id, first.priority, count))


def depart(unit: Unit, world: World, jobs: Sequence[JobRecord]) -> None:
    """Let jobs, as they were, wait no more: at once, and again if it does not come to the commit.

    What the rest of the transaction finds in the database agrees so with the memory: a job that it finds gone is not
    counted as gone a second time when the commit is told. Those of a task queue that is not known yet, which came in
    this transaction, go when they have been counted.
    """
    if not jobs:
        return
    known: list[JobRecord] = []
    new: list[JobRecord] = []
    with world.lock:
        for job in jobs:
            (new if world.waiting.task_queue(job.task_queue_id) is None else known).append(job)
    with marked(unit, world, {job.task_queue_id for job in jobs}):
        if known:
            _go(world, known)
            unit.on_rollback(partial(_come_back, world, known))
        if new:
            unit.after_commit(partial(_go, world, new))


@contextmanager
def marked(unit: Unit, world: World, task_queue_ids: Collection[int]) -> Iterator[None]:
    """Mark task queues until all has been done that the block lets be done at the transaction's end."""
    end = partial(_end_marks, world, task_queue_ids)
    with world.lock:
        world.waiting.untold.begin(task_queue_ids)
    unit.on_rollback(end)
    yield
    unit.after_commit(end)


def _end_marks(world: World, task_queue_ids: Iterable[int]) -> None:
    with world.lock:
        world.waiting.untold.end(task_queue_ids)


def _go(world: World, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        world.dequeued(job.task_queue_id, job.id)


def _come_back(world: World, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        world.requeued(job.task_queue_id, job.id, job.priority)
