"""Rekeys waiting jobs when a slot's policy first refers to a job attribute.

From then on the attribute is significant: it tells task queues apart. Several servers may read the same policy at once.
The database stores the significant attributes, and one lock orders new names against new jobs, so that every job is
placed by all names that are stored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import partial

from pilotage_server.core.jobs.attributes import FIELDS, RUN_HISTORY_NAMES, run_history_of
from pilotage_server.core.queueing.job_ads import ALWAYS_PRESENT
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits, redescribed, with_past
from pilotage_server.operations.queueing.arrivals import recount
from pilotage_server.operations.queueing.placement import TaskQueueFinder
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.task_queues import insert_significant, load_task_queues, lock_significant

MAX_REFERENCES = 2000
"""The most significant attributes; jobs do not get the values of others."""

_NAME = re.compile(r"[a-z_]\w{0,254}", re.ASCII)
_TEMPLATES_AT_ONCE = 1000


def unknown_references(state: ServerState, names: Iterable[str]) -> frozenset[str]:
    """Return those of the folded names to which an expression refers that are not significant yet."""
    return frozenset(names) - state.significant_attributes - ALWAYS_PRESENT


def has_room_for(state: ServerState, names: Collection[str]) -> bool:
    """Whether so many unknown references may become significant as well."""
    return len(state.significant_attributes) + len(names) <= MAX_REFERENCES


def add_references(transaction: Transaction, state: ServerState, names: Iterable[str]) -> None:
    """Make these attributes of jobs, given by folded names, significant.

    Waiting jobs that have such an attribute move to other task queues. The cost grows with the arrays that have one,
    not with their jobs. Memory is updated after the commit.
    """
    wanted = frozenset(name for name in unknown_references(state, names) if _NAME.fullmatch(name))
    if not wanted:
        return
    known = lock_significant(transaction.session)
    new = wanted - known
    if new:
        insert_significant(transaction.session, new, transaction.now)
        Rekeying(transaction, state, known | new | state.rules.key_attributes()).rekey(new)
    transaction.after_commit(partial(_add_names, state, known | new))


def _add_names(state: ServerState, names: frozenset[str]) -> None:
    with state.lock:
        state.significant_attributes |= names
    state.publish_access_change()


class Rekeying:
    """Moves waiting jobs to the task queues that `names`, all significant attributes, tell apart."""

    def __init__(self, transaction: Transaction, state: ServerState, names: frozenset[str]) -> None:
        self._transaction = transaction
        self._state = state
        self._names = names
        self._task_queues = TaskQueueFinder(transaction, state)
        self._known: dict[int, TaskQueue] = {}
        self._touched: set[int] = set()

    def rekey(self, new: frozenset[str]) -> None:
        """Move the jobs that differ in one of the names `new`."""
        keys = {key for name in new - RUN_HISTORY_NAMES for key in _json_keys(name)}
        if keys:
            self._rekey_described(keys)
        if new & RUN_HISTORY_NAMES:
            self._rekey_pasts()
        if self._touched:
            recount(self._transaction, self._state, self._touched)

    def _rekey_described(self, keys: set[str]) -> None:
        session = self._transaction.session
        moves: dict[tuple[int, int], list[int]] = defaultdict(list)
        for pairs in chunks(stored.waiting_templates(session, keys), _TEMPLATES_AT_ONCE):
            self._load(before for before, _ in pairs)
            descriptions = load_descriptions(session, (template for _, template in pairs))
            for before, template in pairs:
                traits = redescribed(self._known[before].traits, descriptions[template], self._names)
                moves[before, self._id_of(traits, before)].append(template)
        for (before, after), templates in moves.items():
            if before != after:
                stored.move_templates(session, templates, before, after)
                self._touched |= {before, after}

    def _rekey_pasts(self) -> None:
        session = self._transaction.session
        for jobs in stored.waiting_with_past(session):
            self._load(job.task_queue_id for job in jobs)
            moves: dict[int, list[int]] = defaultdict(list)
            for job in jobs:
                traits = with_past(self._known[job.task_queue_id].traits, run_history_of(job), self._names)
                after = self._id_of(traits, job.task_queue_id)
                if after != job.task_queue_id:
                    moves[after].append(job.id)
                    self._touched |= {job.task_queue_id, after}
            for after, job_ids in moves.items():
                stored.move_jobs(session, job_ids, after)

    def _load(self, task_queue_ids: Iterable[int]) -> None:
        unknown = set(task_queue_ids) - self._known.keys()
        self._known |= {each.id: each for each in load_task_queues(self._transaction.session, unknown)}

    def _id_of(self, traits: Traits, before: int) -> int:
        return before if traits == self._known[before].traits else self._task_queues.id_of(traits)


def _json_keys(name: str) -> set[str]:
    """Return the lower-case keys of a description's JSON, one of which is there if a job has the attribute."""
    return {name, FIELDS.get(name, name)} | ({"universe"} if name == "jobuniverse" else set())
