"""Jobs that come to wait, told when that is on disk and once a task queue, and jobs that wait no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

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
    """Let jobs, as they were, wait no more: at once, and again if it does not come to the commit.

    What the rest of the transaction finds in the database agrees so with the memory: a job that it finds gone is not
    counted as gone a second time when the commit is told. Those of a task queue that is not known yet, which came in
    this transaction, go when they have been counted.
    """
    known: list[JobRecord] = []
    new: list[JobRecord] = []
    with world.lock:
        for job in jobs:
            (new if world.waiting.task_queue(job.task_queue_id) is None else known).append(job)
    if known:
        _go(world, known)
        unit.on_rollback(partial(_come_back, world, known))
    if new:
        unit.after_commit(partial(_go, world, new))


def _go(world: World, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        world.dequeued(job.task_queue_id, job.id)


def _come_back(world: World, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        world.requeued(job.task_queue_id, job.id, job.priority)
