"""The jobs with a lease that each running limit counts, as counters in the database.

A transaction reads the counters before it matches, and changes them as one of its last steps. Counters far below their
limits are not locked meanwhile, so that servers match for one location at the same time. If a limit is then exceeded,
because another server was quicker, the transaction runs again. Counters near their limits are locked at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pilotage.resources.tree import QueueId
from pilotage_server.core.accounting.limits import LimitRound, limit_key
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.rules import RunningLimit
from pilotage_server.operations.queueing.placement import task_queues_of
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import accounting as stored
from pilotage_server.storage.database.transaction import Transaction, WriteConflictError
from pilotage_server.storage.leases import count_leased
from pilotage_server.storage.task_queues import load_task_queues

_NEAR = 64
"""Ended leases are published to waiting pilots while a limit allows no more than so many further jobs."""


@dataclass(slots=True)
class _CountChanges:
    """Changes of the counters by key; `matched` is the part of them that limits may refuse."""

    rank: ClassVar[int] = 1

    state: ServerState
    by: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    limits: dict[str, set[RunningLimit]] = field(default_factory=dict)

    def add(self, limits: Iterable[RunningLimit], by: int, *, matched: bool) -> None:
        """Count jobs, fewer where `by` is negative."""
        by_key: dict[str, set[RunningLimit]] = {}
        for limit in limits:
            by_key.setdefault(limit_key(limit), set()).add(limit)
        for key, limits_of_key in by_key.items():
            self.limits[key] = limits_of_key
            self.by[key] += by
            self.matched[key] += by if matched else 0

    def merge(self, part: _CountChanges) -> None:
        """Add the changes of a savepoint."""
        self.by.update(part.by)
        self.matched.update(part.matched)
        self.limits |= part.limits

    def write(self, transaction: Transaction) -> None:
        """Write the counters; raises WriteConflictError where more jobs would run than a limit allows."""
        for key, by in sorted(self.by.items()):
            if by > 0:
                self._take(transaction, key, by)
            elif by < 0:
                self._release(transaction, key, by)

    def _take(self, transaction: Transaction, key: str, by: int) -> None:
        if not self.matched[key]:  # a pilot has kept a job that the server had declared lost: it cannot be refused
            stored.add(transaction.session, key, by)
        elif stored.take(transaction.session, key, by, min(limit.at_most for limit in self.limits[key])) is None:
            raise WriteConflictError(f"more jobs than the limit {key} allows")

    def _release(self, transaction: Transaction, key: str, by: int) -> None:
        running = stored.add(transaction.session, key, by)
        for limit in self.limits[key]:
            if running + _NEAR > limit.at_most:
                transaction.after_commit(partial(self.state.publish_eased_limit, limit, -by))


def limits_at_present(
    transaction: Transaction, state: ServerState, queues: Iterable[QueueId], wanted: int
) -> LimitRound:
    """Return the counts of the limits at these queues, for a transaction that matches at most `wanted` jobs there."""
    limits = {limit for queue in queues for limit in state.limits.at(queue)}
    counts = _counts(transaction, limits)
    if any(limit.at_most - wanted < running < limit.at_most for limit, running in counts.items()):
        stored.lock_counts(transaction.session, {limit_key(limit) for limit in limits})
        counts = _counts(transaction, limits)
    return LimitRound(counts)


def running_counts(transaction: Transaction, state: ServerState, queues: Iterable[QueueId]) -> dict[RunningLimit, int]:
    """Return for each limit that holds at some of the queues how many jobs with a lease it counts."""
    return _counts(transaction, {limit: None for queue in queues for limit in state.limits.at(queue)})


def refresh_counts(transaction: Transaction, state: ServerState) -> None:
    """Publish the room below limits that other servers have made since the last call."""
    counts = _counts(transaction, state.limits.limits)
    for limit, running in counts.items():
        ended = state.synced_limits.get(limit, running) - running
        if ended > 0 and running + _NEAR > limit.at_most:
            state.publish_eased_limit(limit, ended)
    state.synced_limits = counts


def _counts(transaction: Transaction, limits: Iterable[RunningLimit]) -> dict[RunningLimit, int]:
    """Return the counters of the database with the pending changes of this transaction."""
    keys = {limit: limit_key(limit) for limit in limits}
    if not keys:
        return {}
    running = stored.read_counts(transaction.session, set(keys.values()))
    pending = list(transaction.all_deferred(_CountChanges))
    return {limit: running.get(key, 0) + sum(changes.by[key] for changes in pending) for limit, key in keys.items()}


def count_matched(transaction: Transaction, state: ServerState, queue: QueueId, matched: Iterable[TaskQueue]) -> None:
    """Count jobs that were matched to run at this queue, each by the task queue where it waited."""
    if not state.limits.at(queue):
        return
    jobs: Counter[tuple[QueueId, int]] = Counter()
    traits: dict[int, Traits] = {}
    for task_queue in matched:
        jobs[queue, task_queue.id] += 1
        traits[task_queue.id] = task_queue.traits
    _count(transaction, state, jobs, traits, matched=True)


def count_moves(transaction: Transaction, state: ServerState, moves: Iterable[tuple[JobRecord, JobRecord]]) -> None:
    """Count jobs that have got or lost a lease, given as they were and as they are now."""
    if not state.limits.limits:
        return
    begun = [(before, after) for before, after in moves if before.is_leased != after.is_leased]
    limited = [pair for pair in begun if state.limits.at(_lease_queue(*pair))]
    if not limited:
        return
    traits = _traits(transaction, state, {before.task_queue_id for before, _ in limited})
    for matched in (True, False):
        jobs: Counter[tuple[QueueId, int]] = Counter()
        for before, after in limited:
            if (after.is_leased and after.attempt > before.attempt) is matched:
                jobs[_lease_queue(before, after), before.task_queue_id] += 1 if after.is_leased else -1
        _count(transaction, state, jobs, traits, matched=matched)


def count_ended(transaction: Transaction, state: ServerState, ended: Iterable[tuple[QueueId, int]]) -> None:
    """Remove jobs that have lost their leases, each given by the queue where it ran and its task queue."""
    jobs = Counter(pair for pair in ended if state.limits.at(pair[0])) if state.limits.limits else None
    if jobs:
        traits = _traits(transaction, state, {task_queue_id for _, task_queue_id in jobs})
        _count(transaction, state, {pair: -count for pair, count in jobs.items()}, traits, matched=False)


def _lease_queue(before: JobRecord, after: JobRecord) -> QueueId:
    """Return the queue of the lease that has begun or ended."""
    queue = after.queue if after.is_leased else before.queue
    assert queue is not None, "a job with a lease has a queue"
    return queue


def _count(
    transaction: Transaction,
    state: ServerState,
    jobs: Mapping[tuple[QueueId, int], int],
    traits: Mapping[int, Traits],
    *,
    matched: bool,
) -> None:
    """Count jobs, by the queue of the lease and the task queue, whose traits are given."""
    for (queue, task_queue_id), by in jobs.items():
        limits = state.limits.counting(queue, traits[task_queue_id])
        if limits and by:
            transaction.deferred(_CountChanges, lambda: _CountChanges(state)).add(limits, by, matched=matched)


def _traits(transaction: Transaction, state: ServerState, task_queue_ids: set[int]) -> dict[int, Traits]:
    return {id_: task_queue.traits for id_, task_queue in task_queues_of(transaction, state, task_queue_ids).items()}


def recount_limits(transaction: Transaction, state: ServerState) -> None:
    """Set the counters of all limits from the jobs; to be called at a server's start, as limits may be new.

    Other servers may begin and end leases meanwhile: they count uncommitted ones afterwards.
    """
    keys = {limit_key(limit) for limit in state.limits.limits}
    missing = keys - stored.read_counts(transaction.session, keys).keys()
    for key in sorted(missing):
        stored.add(transaction.session, key, 0)
    stored.lock_counts(transaction.session, keys)
    stored.set_counts(
        transaction.session, {limit_key(limit): count for limit, count in fresh_counts(transaction, state).items()}
    )


def fresh_counts(transaction: Transaction, state: ServerState) -> dict[RunningLimit, int]:
    """Return how many jobs with a lease each limit counts, counted one by one."""
    leased = count_leased(transaction.session)
    traits = {each.id: each.traits for each in load_task_queues(transaction.session, {id_ for _, id_ in leased})}
    counts = dict.fromkeys(state.limits.limits, 0)
    for (queue, task_queue_id), jobs in leased.items():
        for limit in state.limits.counting(queue, traits[task_queue_id]):
            counts[limit] += jobs
    return counts
