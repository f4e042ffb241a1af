"""How many jobs with a lease each running limit counts: read by matches, changed with every lease that begins or ends.

A transaction reads the counts before it matches, and changes them as one of its last acts. Limits that are far from
what they allow are not locked meanwhile, so that servers match at one place side by side; should a limit be passed
after all, because another was quicker, the transaction runs again. Near to what they allow they are locked at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.limits import LimitRound, limit_key
from pilotage_server.core.rules import RunningLimit
from pilotage_server.core.task_queues import TaskQueue, Traits
from pilotage_server.operations.task_queueing import task_queues_of
from pilotage_server.operations.world import World
from pilotage_server.storage import limits as stored
from pilotage_server.storage.claims import count_leased
from pilotage_server.storage.engine import OvertakenError, Unit
from pilotage_server.storage.task_queues import load_task_queues

_NEAR = 64
"""Ends of leases are told to who waits as long as a limit allows no more than so many further jobs."""


@dataclass(slots=True)
class _Changes:
    """By how much the counts change, by key; `matched` holds those of it that limits may refuse."""

    rank: ClassVar[int] = 1

    world: World
    by: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    limits: dict[str, set[RunningLimit]] = field(default_factory=dict)

    def add(self, limits: Iterable[RunningLimit], by: int, *, matched: bool) -> None:
        """Count jobs, fewer where `by` is negative."""
        by_key: dict[str, set[RunningLimit]] = {}
        for limit in limits:
            by_key.setdefault(limit_key(limit), set()).add(limit)
        for key, same in by_key.items():
            self.limits[key] = same
            self.by[key] += by
            self.matched[key] += by if matched else 0

    def take_over(self, part: _Changes) -> None:
        """Count what a part of the transaction counts."""
        self.by.update(part.by)
        self.matched.update(part.matched)
        self.limits |= part.limits

    def write(self, unit: Unit) -> None:
        """Change the counts; raises OvertakenError where more would run than a limit allows."""
        for key, by in sorted(self.by.items()):
            if by > 0:
                self._take(unit, key, by)
            elif by < 0:
                self._give_back(unit, key, by)

    def _take(self, unit: Unit, key: str, by: int) -> None:
        if not self.matched[key]:  # a pilot has gone on with what it was thought to have lost: it cannot be refused
            stored.add(unit.session, key, by)
        elif stored.take(unit.session, key, by, min(limit.at_most for limit in self.limits[key])) is None:
            raise OvertakenError(f"more jobs than the limit {key} allows")

    def _give_back(self, unit: Unit, key: str, by: int) -> None:
        running = stored.add(unit.session, key, by)
        for limit in self.limits[key]:
            if running + _NEAR > limit.at_most:
                unit.after_commit(partial(self.world.limit_eased, limit, -by))


def limits_at_present(unit: Unit, world: World, queues: Iterable[QueueId], wanted: int) -> LimitRound:
    """Return what the limits at these queues count, for a transaction that is to match at most `wanted` jobs there."""
    limits = {limit for queue in queues for limit in world.limits.at(queue)}
    counts = _counts(unit, limits)
    if any(limit.at_most - wanted < running < limit.at_most for limit, running in counts.items()):
        stored.lock_counts(unit.session, {limit_key(limit) for limit in limits})
        counts = _counts(unit, limits)
    return LimitRound(counts)


def running_counts(unit: Unit, world: World, queues: Iterable[QueueId]) -> dict[RunningLimit, int]:
    """Return for each limit that holds at some of the queues how many jobs with a lease it counts."""
    return _counts(unit, {limit: None for queue in queues for limit in world.limits.at(queue)})


def hear_of_counts(unit: Unit, world: World) -> None:
    """Tell those who wait here of room below limits that other servers have made since the last time."""
    counts = _counts(unit, world.limits.limits)
    for limit, running in counts.items():
        ended = world.limits_seen.get(limit, running) - running
        if ended > 0 and running + _NEAR > limit.at_most:
            world.limit_eased(limit, ended)
    world.limits_seen = counts


def _counts(unit: Unit, limits: Iterable[RunningLimit]) -> dict[RunningLimit, int]:
    """Return the counts in the database with what this transaction has still to write."""
    keys = {limit: limit_key(limit) for limit in limits}
    if not keys:
        return {}
    running = stored.read_counts(unit.session, set(keys.values()))
    gathered = list(unit.tabs(_Changes))
    return {limit: running.get(key, 0) + sum(tab.by[key] for tab in gathered) for limit, key in keys.items()}


def count_matched(unit: Unit, world: World, queue: QueueId, matched: Iterable[TaskQueue]) -> None:
    """Count jobs that were matched to run at this queue, each by the task queue where it waited."""
    if not world.limits.at(queue):
        return
    jobs: Counter[tuple[QueueId, int]] = Counter()
    traits: dict[int, Traits] = {}
    for task_queue in matched:
        jobs[queue, task_queue.id] += 1
        traits[task_queue.id] = task_queue.traits
    _count(unit, world, jobs, traits, matched=True)


def count_moves(unit: Unit, world: World, moves: Iterable[tuple[JobRecord, JobRecord]]) -> None:
    """Count jobs that have got a lease and count those no more that have lost it; they were, and are now, like this."""
    if not world.limits.limits:
        return
    begun = [(before, after) for before, after in moves if before.is_leased != after.is_leased]
    limited = [pair for pair in begun if world.limits.at(_place(*pair))]
    if not limited:
        return
    traits = _traits(unit, world, {before.task_queue_id for before, _ in limited})
    for matched in (True, False):
        jobs: Counter[tuple[QueueId, int]] = Counter()
        for before, after in limited:
            if (after.is_leased and after.attempt > before.attempt) is matched:
                jobs[_place(before, after), before.task_queue_id] += 1 if after.is_leased else -1
        _count(unit, world, jobs, traits, matched=matched)


def count_ended(unit: Unit, world: World, ended: Iterable[tuple[QueueId, int]]) -> None:
    """Count jobs no more that have lost their leases, each given by the queue where it ran and its task queue."""
    jobs = Counter(pair for pair in ended if world.limits.at(pair[0])) if world.limits.limits else None
    if jobs:
        traits = _traits(unit, world, {task_queue_id for _, task_queue_id in jobs})
        _count(unit, world, {pair: -count for pair, count in jobs.items()}, traits, matched=False)


def _place(before: JobRecord, after: JobRecord) -> QueueId:
    """Return where the lease is that has begun or ended."""
    queue = after.queue if after.is_leased else before.queue
    assert queue is not None, "who holds a lease has a queue"
    return queue


def _count(
    unit: Unit,
    world: World,
    jobs: Mapping[tuple[QueueId, int], int],
    traits: Mapping[int, Traits],
    *,
    matched: bool,
) -> None:
    """Count jobs, by the queue of the lease and the task queue, whose traits are given."""
    for (queue, task_queue_id), by in jobs.items():
        limits = world.limits.counting(queue, traits[task_queue_id])
        if limits and by:
            unit.tab(_Changes, lambda: _Changes(world)).add(limits, by, matched=matched)


def _traits(unit: Unit, world: World, task_queue_ids: set[int]) -> dict[int, Traits]:
    return {id_: task_queue.traits for id_, task_queue in task_queues_of(unit, world, task_queue_ids).items()}


def count_anew(unit: Unit, world: World) -> None:
    """Let the counts of all limits be what the jobs say; to be called at a server's start, as limits may be new.

    Others may give and end leases meanwhile: what they have not committed yet they count afterwards.
    """
    keys = {limit_key(limit) for limit in world.limits.limits}
    missing = keys - stored.read_counts(unit.session, keys).keys()
    for key in sorted(missing):
        stored.add(unit.session, key, 0)
    stored.lock_counts(unit.session, keys)
    stored.set_counts(unit.session, {limit_key(limit): count for limit, count in fresh_counts(unit, world).items()})


def fresh_counts(unit: Unit, world: World) -> dict[RunningLimit, int]:
    """Return how many jobs with a lease each limit counts, counted one by one."""
    leased = count_leased(unit.session)
    traits = {each.id: each.traits for each in load_task_queues(unit.session, {id_ for _, id_ in leased})}
    counts = dict.fromkeys(world.limits.limits, 0)
    for (queue, task_queue_id), jobs in leased.items():
        for limit in world.limits.counting(queue, traits[task_queue_id]):
            counts[limit] += jobs
    return counts
