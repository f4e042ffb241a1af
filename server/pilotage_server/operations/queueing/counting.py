"""Reads what the index of task queues lacks: unknown task queues, and heads."""

from __future__ import annotations

from collections.abc import Collection

from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import task_queues
from pilotage_server.storage.database.transaction import Transaction

_MAX_COUNTED = 1000
"""At most so many jobs of a task queue are counted while a request waits."""

ASSUMED = 1_000_000
"""So many more jobs are assumed where not all were counted: with too few, matches would exhaust the queue wrongly."""


def count_up_to_limit(transaction: Transaction, ids: Collection[int]) -> dict[int, int]:
    """Return the numbers of waiting jobs by task queue, each at most `_MAX_COUNTED`."""
    return task_queues.count_some(transaction.session, ids, _MAX_COUNTED)


def add_task_queue(state: ServerState, task_queue: TaskQueue, count: int, head: QueueHead | None = None) -> None:
    """Add a task queue with its count, which may be incomplete."""
    is_all = count < _MAX_COUNTED
    state.waiting.add(task_queue, count, head, assumed=0 if is_all else ASSUMED)
    if not is_all:
        state.pending_counts.add(task_queue.id)


def load_unknown_task_queues(transaction: Transaction, state: ServerState) -> None:
    """Read the task queues of which only the id is known; to be called before anything is written."""
    with state.lock:
        unknown = state.waiting.unknown()
    if not unknown:
        return
    found = task_queues.load_task_queues(transaction.session, unknown)
    counts = count_up_to_limit(transaction, unknown)
    with state.lock:
        for task_queue in found:
            add_task_queue(state, task_queue, counts.get(task_queue.id, 0))
        state.waiting.discard_unknown(unknown)
        state.pending_counts |= unknown  # jobs that are counted here may be added once more after this
