"""The one way to change the state of jobs: transitions with all their consequences.

A `TransitionBatch` decides transitions by the table in `core.jobs.states`, stores them by compare-and-set and publishes
them as events. It also ends attempts whose leases end, charges their use, requeues jobs or fails them at the limit of
attempts, and fences a job whose last attempt may still be running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pilotage.errors import StateConflictError
from pilotage_server.core.attempts.leases import attempts_text, is_last
from pilotage_server.core.jobs.periodic_policies import UNDER_POLICY
from pilotage_server.core.jobs.record import (
    FeedEvent,
    JobRecord,
    is_matchable,
    is_router_stamp,
    may_start_again,
    transition_changes,
)
from pilotage_server.core.jobs.states import FENCING_CAUSES, FINAL, LEASED, JobCause, JobState, next_state
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.races.races import cause_in_race, may_end_race
from pilotage_server.operations.accounting.limits import count_moves
from pilotage_server.operations.accounting.usage import count_ended_attempts, meter_moves, stop_metering
from pilotage_server.operations.attempts.events import publish_events, publish_parent_events
from pilotage_server.operations.attempts.race_ends import Finisher, close_races, settled_races
from pilotage_server.operations.queueing.arrivals import add_waiting, remove_waiting
from pilotage_server.operations.queueing.placement import placed_after_requeue
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import AttemptBook, AttemptKey, load_history
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import compare_and_set


class LeaseEnd(NamedTuple):
    """A job before the transition that ends its lease, and why."""

    job: JobRecord
    cause: JobCause
    reason: str

    @property
    def key(self) -> AttemptKey:
        """Job id and attempt."""
        return (self.job.id, self.job.attempt)


def end_leases(transaction: Transaction, state: ServerState, ends: Sequence[LeaseEnd], book: AttemptBook) -> None:
    """End the attempts of jobs that lose their leases, charge their use, and notify pilots that must stop them."""
    book.read(end.key for end in ends)
    open_ends = [(end, attempt) for end in ends if (attempt := book.get(end.key)) is not None and attempt.ended is None]
    stop_metering(transaction, state, [attempt for _, attempt in open_ends])
    count_ended_attempts(transaction, state, [(end.job, attempt, end.cause) for end, attempt in open_ends])
    for end, attempt in open_ends:
        # an outcome that the pilot has reported stays
        outcome = {} if attempt.reported else {"outcome": end.cause.value, "reason": end.reason}
        book.change(end.key, {"ended": transaction.now, "metered": None, **outcome})
    still_open = [end for end, _ in open_ends]
    for stamp in sorted({end.job.pilot_stamp for end in still_open if end.cause in FENCING_CAUSES}):
        if is_router_stamp(stamp):  # a job router polls for jobs to give up
            continue
        transaction.after_commit(partial(state.publish_command, stamp))


class Transition(NamedTuple):
    """A transition of a job and its actor; `changes` are fields of the record that change with it."""

    job: JobRecord
    cause: JobCause
    actor: str
    reason: str = ""
    changes: Mapping[str, Any] = MappingProxyType({})


def apply_transition(
    transaction: Transaction,
    state: ServerState,
    job: JobRecord,
    cause: JobCause,
    *,
    reason: str,
    actor: str,
    **changes: Any,
) -> JobRecord:
    """Apply a transition to one job and return its new record.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such transition.
    StateConflictError
        The job has changed since it was loaded.
    """
    (moved,) = apply_transitions(transaction, state, [Transition(job, cause, actor, reason, changes)])
    if moved is None:
        raise StateConflictError(f"job {job.id} is no longer {job.state} in attempt {job.attempt}")
    return moved


def apply_transitions(
    transaction: Transaction, state: ServerState, transitions: Sequence[Transition]
) -> tuple[JobRecord | None, ...]:
    """Apply at most one transition to each job and return the new records; None = that job has changed meanwhile.

    Other jobs of a race that changes with them are not returned.

    Raises
    ------
    IllegalTransitionError
        Some job's state has no such transition; then nothing has changed.
    """
    batch = TransitionBatch(transaction, state, AttemptBook(transaction.session))
    for transition in transitions:
        batch.add(transition)
    moved = batch.store()
    batch.settle_races()
    return tuple(moved.get(transition.job.id) for transition in transitions)


@dataclass(slots=True)
class _JobTransitions:
    """The transitions of one job: its record before and after, all changes and events."""

    before: JobRecord
    after: JobRecord
    changes: dict[str, Any]
    events: list[FeedEvent]
    lease_end: LeaseEnd | None = None
    returns_to_waiting: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether a dependency watches for these transitions."""
        before, after = self.before, self.after
        if not after.awaited:
            return False
        ends = (after.state in FINAL) is not (before.state in FINAL)  # or runs again
        return after.awaited.happens(starts=after.starts > before.starts, ends=ends)

    def add(self, transaction: Transaction, transition: Transition) -> None:
        job, cause, actor, reason, decided = transition
        # PostgreSQL stores no zero characters, and a reason may contain output of the payload.
        reason = reason.replace("\0", "")
        changes = transition_changes(job, cause, reason, transaction.now, decided)
        self.changes.update(changes)
        self.after = after = job.changed(changes)
        if job.is_leased and not after.is_leased:
            self.lease_end = LeaseEnd(job, cause, reason)
        if after.state is JobState.WAITING and job.state is not JobState.WAITING:
            self.returns_to_waiting = True
        self.events.append(
            FeedEvent(0, job.id, transaction.now, job.state, after.state, cause, reason, after.attempt, actor)
        )


class TransitionBatch:
    """Transitions of jobs: added one by one in memory, stored together.

    `book` holds the attempts whose leases end; its changes are written with the jobs.
    """

    def __init__(self, transaction: Transaction, state: ServerState, book: AttemptBook) -> None:
        self._transaction = transaction
        self._state = state
        self._book = book
        self._by_job: dict[int, _JobTransitions] = {}
        self._finishers: list[Finisher] = []

    def add(self, transition: Transition) -> JobRecord:
        """Add a transition and return the record after it; `job` must be as the previous transition left it.

        Raises
        ------
        IllegalTransitionError
            The job's state has no such transition.
        """
        if transition.job.race:
            transition = transition._replace(cause=cause_in_race(transition.job, transition.cause))
        if transition.job.blocked_by and transition.cause in _BLOCKED_AGAIN:
            transition = transition._replace(cause=JobCause.BLOCKED)
        if transition.job.max_starts:
            transition = _within_max_starts(transition)
        chain = self._by_job.get(transition.job.id)
        if chain is None:
            chain = self._by_job[transition.job.id] = _JobTransitions(transition.job, transition.job, {}, [])
        chain.add(self._transaction, transition)
        return chain.after

    def store(self) -> dict[int, JobRecord]:
        """Store the transitions and return the new records by id; jobs that have changed meanwhile are left out."""
        self._assign_task_queues()
        chains = list(self._by_job.values())
        befores = [chain.before for chain in chains]
        moved = compare_and_set(self._transaction.session, befores, [chain.changes for chain in chains])
        self._follow_up([chain for chain in chains if chain.before.id in moved])
        self._book.write()
        self._by_job = {}
        return {chain.before.id: chain.after for chain in chains if chain.before.id in moved}

    def settle_races(self) -> None:
        """End the races that the stored transitions have decided.

        Call it after all other writes of these transitions, because outputs are shared here.
        """
        if not self._finishers:
            return
        settled = settled_races(self._transaction, self._finishers)
        for each in settled:
            for job, cause, reason, changes in each.end.steps:
                self.add(Transition(job, cause, "server", reason, changes))
        self.store()
        close_races(self._transaction, settled)
        self._finishers = []

    def _assign_task_queues(self) -> None:
        """Assign requeued jobs to task queues: their run history may have changed."""
        requeued = {id_: chain for id_, chain in self._by_job.items() if chain.returns_to_waiting}
        in_new_pool = {id_ for id_, chain in requeued.items() if "pool_id" in chain.changes}
        task_queues = placed_after_requeue(
            self._transaction, self._state, [chain.after for chain in requeued.values()], in_new_pool
        )
        for id_, task_queue_id in task_queues.items():
            chain = requeued[id_]
            chain.changes["task_queue_id"] = task_queue_id
            chain.after = chain.after.changed({"task_queue_id": task_queue_id})

    def _follow_up(self, chains: Sequence[_JobTransitions]) -> None:
        """Apply the consequences: attempts, accounts, task queues, policies, events and races."""
        transaction, state = self._transaction, self._state
        ends = [chain.lease_end for chain in chains if chain.lease_end is not None]
        end_leases(transaction, state, ends, self._book)
        meter_moves(transaction, state, [(chain.before, chain.after) for chain in chains], self._book)
        count_moves(transaction, state, [(chain.before, chain.after) for chain in chains])
        remove_waiting(transaction, state, [chain.before for chain in chains if is_matchable(chain.before)])
        waiting = [chain.after for chain in chains if is_matchable(chain.after)]
        add_waiting(transaction, state, [(job.task_queue_id, QueueHead(job.priority, job.id)) for job in waiting])
        publish_parent_events(transaction, state, [chain.before.id for chain in chains if chain.is_awaited])
        changed = [job.id for job in (chain.after for chain in chains) if job.watch and job.state in UNDER_POLICY]
        if changed:
            transaction.after_commit(partial(state.add_policy_checks, changed))
        for chain in chains:
            for event in chain.events:
                publish_events(transaction, state, event)
            if chain.before.race:
                causes = tuple(event.cause for event in chain.events)
                if may_end_race(chain.after, causes):
                    self._finishers.append(Finisher(chain.after, causes))


_BLOCKED_AGAIN = frozenset({JobCause.RELEASED, JobCause.RESCHEDULED})
"""Causes that let a job wait, unless it is blocked; a blocked one has never run, so no counter is to be reset."""


def _within_max_starts(transition: Transition) -> Transition:
    """Return the failure of a job that would wait for a start that its owner does not permit; else the transition."""
    job, cause, _, reason, _ = transition
    returns = next_state(job.state, cause) is JobState.WAITING and job.state in LEASED | {JobState.HELD}
    if not returns or cause in {JobCause.RESCHEDULED, JobCause.EDITED} or may_start_again(job, cause):
        return transition
    ended = reason or cause.value
    why = f"{ended}; the job may have started {job.max_starts} times, and its max_starts permits no more"
    if job.max_starts == 1:
        why = f"{ended}; the job may have started, and its max_starts = 1 permits no second start"
    return transition._replace(cause=JobCause.STARTS_EXHAUSTED, reason=why)


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """A job whose attempt was lost, and how."""

    job: JobRecord
    cause: JobCause
    reason: str


def requeue_or_fail(
    transaction: Transaction, state: ServerState, lost_attempts: Sequence[LostAttempt], *, actor: str
) -> tuple[JobRecord | None, ...]:
    """Requeue the jobs, or fail them at the limit of attempts; None = that job has changed meanwhile."""
    return apply_transitions(
        transaction, state, [lost_transition(transaction, state, lost, actor) for lost in lost_attempts]
    )


def lost_transition(transaction: Transaction, state: ServerState, lost: LostAttempt, actor: str) -> Transition:
    """Return the transition of a job whose attempt was lost. The report of the attempt must be stored already."""
    spent = {"spent_attempts": lost.job.spent_attempts + 1}
    if not is_last(lost.job.spent_attempts, state.rules.attempt_limit):
        return Transition(lost.job, lost.cause, actor, lost.reason, spent)
    return Transition(lost.job, JobCause.ATTEMPTS_EXHAUSTED, actor, _attempts_history(transaction, lost), spent)


def _attempts_history(transaction: Transaction, lost: LostAttempt) -> str:
    """Return what happened to all attempts of the job, for its owner."""
    *before, last = load_history(transaction.session, lost.job.id)
    complete = last._replace(outcome=last.outcome or lost.cause.value, reason=last.reason or lost.reason)
    spent = lost.job.spent_attempts + 1
    return f"{spent} {'attempt was' if spent == 1 else 'attempts were'} lost: {attempts_text((*before, complete))}"


def release_fences(transaction: Transaction, state: ServerState, job_ids: Iterable[int]) -> None:
    """Release the fences of jobs whose pilots have reported the end of the last attempt, but not those of a restore."""
    add_waiting(transaction, state, leases.release_fences(transaction.session, job_ids, transaction.now))


def release_fences_of_pilots(transaction: Transaction, state: ServerState, stamps: Iterable[str]) -> None:
    """Release the fences of jobs at pilots that have ended."""
    release_fences(transaction, state, leases.lock_fences_of_pilots(transaction.session, stamps))


def release_expired_fences(transaction: Transaction, state: ServerState, most: int) -> int:
    """Release at most so many fences that have expired; return how many."""
    lapsed = leases.lock_expired_fences(transaction.session, transaction.now, most)
    release_fences(transaction, state, lapsed)
    return len(lapsed)
