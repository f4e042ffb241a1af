"""Changes of waiting jobs in memory, bound to the end of their transaction.

Jobs that begin to wait are added after the commit. Jobs that wait no more are removed at once and return when the
transaction fails. Task queues between which jobs were moved are counted again after the commit. Such a count and the
changes of other transactions may overlap or leave a gap, so it is repeated when no transaction is pending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingTaskQueue
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.task_queues import read_heads


def add_waiting(transaction: Transaction, state: ServerState, arrivals: Iterable[tuple[int, QueueHead]]) -> None:
    """Add jobs to their task queues after the commit, those of one task queue together."""
    heads: dict[int, list[QueueHead]] = defaultdict(list)
    for task_queue_id, head in arrivals:
        heads[task_queue_id].append(head)
    for task_queue_id, group in heads.items():
        add_waiting_group(transaction, state, task_queue_id, min(group, key=lambda head: head.order), len(group))


def add_waiting_group(
    transaction: Transaction, state: ServerState, task_queue_id: int, first: QueueHead, count: int
) -> None:
    """Add so many jobs to a task queue after the commit; `first` is the first of them."""
    with pending_changes(transaction, state, [task_queue_id]):
        transaction.after_commit(partial(state.add_waiting, task_queue_id, first.job_id, first.priority, count))


def remove_waiting(transaction: Transaction, state: ServerState, jobs: Sequence[JobRecord]) -> None:
    """Remove jobs, given as they were, at once; a failed transaction returns them.

    So what the rest of the transaction reads in the database agrees with memory: a job that it finds gone is not
    removed a second time after the commit. Jobs of unknown task queues, which were added in this transaction, are
    removed after they have been counted.
    """
    if not jobs:
        return
    known: list[JobRecord] = []
    new: list[JobRecord] = []
    with state.lock:
        for job in jobs:
            (new if state.waiting.task_queue(job.task_queue_id) is None else known).append(job)
    with pending_changes(transaction, state, {job.task_queue_id for job in jobs}):
        if known:
            _remove(state, known)
            transaction.on_rollback(partial(_restore, state, known))
        if new:
            transaction.after_commit(partial(_remove, state, new))


@contextmanager
def pending_changes(transaction: Transaction, state: ServerState, task_queue_ids: Collection[int]) -> Iterator[None]:
    """Mark task queues as pending until all callbacks that the block registers for the transaction's end are done."""
    end = partial(_end_pending, state, task_queue_ids)
    with state.lock:
        state.waiting.pending.begin(task_queue_ids)
    transaction.on_rollback(end)
    yield
    transaction.after_commit(end)


def _end_pending(state: ServerState, task_queue_ids: Iterable[int]) -> None:
    with state.lock:
        state.waiting.pending.end(task_queue_ids)


def _remove(state: ServerState, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        state.remove_waiting(job.task_queue_id, job.id)


def _restore(state: ServerState, jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        state.restore_waiting(job.task_queue_id, job.id, job.priority)


def recount(transaction: Transaction, state: ServerState, task_queue_ids: Collection[int]) -> None:
    """Set the counts of these task queues in memory after the commit."""
    task_queues = stored.load_task_queues(transaction.session, task_queue_ids)
    counts = stored.count_waiting(transaction.session, {each.id for each in task_queues})
    heads = read_heads(transaction.session, counts)
    waiting = [WaitingTaskQueue(each, counts.get(each.id, 0), heads.get(each.id)) for each in task_queues]
    with pending_changes(transaction, state, task_queue_ids):
        transaction.after_commit(partial(_set_counts, state, waiting))


def _set_counts(state: ServerState, waiting: Collection[WaitingTaskQueue]) -> None:
    with state.lock:
        for each in waiting:
            state.waiting.set_count(each.task_queue, each.count, each.head)
