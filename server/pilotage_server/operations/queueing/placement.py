"""The pool and the task queue of a job: found by traits, made when there is none.

Each is looked up once in a transaction, however many jobs share it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Set
from dataclasses import dataclass
from functools import partial

from pilotage.job_description import JobDescription
from pilotage.resources.requirements import read_requirements
from pilotage.values.accounts import Account
from pilotage_server.core.jobs.attributes import NO_RUN_HISTORY, RunHistory, run_history_of
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits, traits_of
from pilotage_server.operations.resources.pools import ensure_pool
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pools import pools_now
from pilotage_server.storage.resources import hold_tree
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.task_queues import find_or_insert, load_task_queues, share_lock_significant


def lock_placement(transaction: Transaction) -> frozenset[str]:
    """Lock what decides where jobs belong until the commit: the tree and the significant attributes.

    To be called before jobs are locked: transactions that change these lock jobs as well, so another order could
    deadlock. Returns the folded names of the significant attributes.
    """
    hold_tree(transaction.session)  # always first
    return share_lock_significant(transaction.session)


def key_names(transaction: Transaction, state: ServerState) -> frozenset[str]:
    """Return the folded names of the attributes that tell task queues apart; they are locked until the commit."""
    return lock_placement(transaction) | state.rules.key_attributes()


def task_queues_of(transaction: Transaction, state: ServerState, ids: Set[int]) -> dict[int, TaskQueue]:
    """Return task queues by id, from memory or from the database."""
    with state.lock:
        known = {id_: state.waiting.task_queue(id_) for id_ in ids}
    found = {id_: task_queue for id_, task_queue in known.items() if task_queue is not None}
    return found | {each.id: each for each in load_task_queues(transaction.session, ids - found.keys())}


class TaskQueueFinder:
    """Finds or makes task queues, and caches them as long as its transaction lasts."""

    def __init__(self, transaction: Transaction, state: ServerState) -> None:
        self._transaction = transaction
        self._state = state
        self._ids: dict[Traits, int] = {}
        self._limited = state.rules.key_attributes()

    def id_of(self, traits: Traits) -> int:
        """Return the id of the task queue for jobs with these traits."""
        values = self._state.waiting.values
        with self._state.lock:
            admitted = values.limited(traits, kept=self._limited)
        if admitted not in self._ids:
            task_queue = find_or_insert(self._transaction.session, admitted, self._transaction.now)
            with self._state.lock:  # at once: one transaction may add many values
                values.add(task_queue)
            self._transaction.after_commit(partial(_add, self._state, task_queue))
            self._ids[admitted] = task_queue.id
        return self._ids[admitted]


def placed_after_requeue(
    transaction: Transaction, state: ServerState, jobs: Collection[JobRecord], pooled: Collection[int] = ()
) -> dict[int, int]:
    """Return the task queues of jobs that return to wait, by the ids of the jobs.

    The pools of those in `pooled` have just been found; those of the others may have changed since they were loaded.
    """
    if not jobs:
        return {}
    names = key_names(transaction, state)
    pools = pools_now(transaction.session, [job.id for job in jobs if job.id not in pooled])
    descriptions = load_descriptions(transaction.session, {job.template_id for job in jobs})
    task_queues = TaskQueueFinder(transaction, state)
    placed: dict[int, int] = {}
    for job in jobs:
        account = Account(job.vo, job.group, job.owner)
        traits = traits_of(
            account, pools.get(job.id, job.pool_id), descriptions[job.template_id], names, run_history_of(job)
        )
        placed[job.id] = task_queues.id_of(traits)
    return placed


def _add(state: ServerState, task_queue: TaskQueue) -> None:
    with state.lock:
        state.waiting.add(task_queue)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job waits; `pool_id` "" = it has no Requirements section."""

    task_queue_id: int
    pool_id: str


class Placer:
    """Finds or makes pools and task queues, and caches them as long as its transaction lasts."""

    def __init__(self, transaction: Transaction, state: ServerState) -> None:
        self.state = state
        self._transaction = transaction
        self._names: frozenset[str] | None = None
        self._pools: dict[tuple[str, str], str] = {}
        self._task_queues = TaskQueueFinder(transaction, state)

    def splits_by(self, names: frozenset[str]) -> bool:
        """Whether jobs that differ only in attributes of these folded names may wait in different task queues."""
        return not names.isdisjoint(self._key_names())

    def place(self, account: Account, description: JobDescription, past: RunHistory = NO_RUN_HISTORY) -> Placement:
        """Return where a job of this description, with `past` behind it, waits; raises as `pool_of`."""
        names = self._key_names()
        pool_id = self.pool_of(account.vo, description)
        traits = traits_of(account, pool_id, description, names, past)
        return Placement(self._task_queues.id_of(traits), pool_id)

    def _key_names(self) -> frozenset[str]:
        """Return the folded names of the attributes that tell task queues apart."""
        if self._names is None:
            self._names = key_names(self._transaction, self.state)
        return self._names

    def pool_of(self, vo: str, description: JobDescription) -> str:
        """Return the id of the pool of such a job, "" for none.

        Raises
        ------
        InvalidRequirementsError
            The Requirements section has no meaning.
        """
        section = description.requirements
        key = (vo, json.dumps(dict(section), sort_keys=True) if section else "")
        if key not in self._pools:
            requirements = read_requirements(section, vo, self.state.tree.declarations) if section else None
            self._pools[key] = ensure_pool(self._transaction, self.state, requirements)
        return self._pools[key]
