"""Which waiting pilots might get a new job, decided from memory; the match itself decides finally.

Waiting pilots are evaluated together where they are alike: at the same queue, for the same VOs, with slots that differ
only within `roomy` and have equal START keys. The group's result is an upper bound for each of its pilots. Where it
leaves a chance, each pilot is evaluated by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntFlag
from functools import partial

from pilotage.clock import Clock
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.matching.job_views import JobSnapshot
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator
from pilotage_server.core.queueing.reach import PilotAccess
from pilotage_server.core.queueing.slot_offers import fits, size_of
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.matching.trials import throttles_at
from pilotage_server.operations.server_state import ServerState


class PossibleSlots(IntFlag):
    """The kinds of slots with which a pilot could take a job."""

    NONE = 0
    OCCUPIED_SLOT = 1
    FREE_SLOT = 2


@dataclass(frozen=True, slots=True)
class ServerMatchEstimator:
    """What pilots might get, over one server's memory."""

    state: ServerState
    clock: Clock

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        """Return with which slots a waiting pilot could take jobs of the task queue."""
        return could_match(self.state, self.clock(), task_queue, credential, slots)

    def upper_bound(
        self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        """Return an upper bound of `of` for the pilot and all that are alike."""
        might_take = partial(_might_take_at_best, self.state, self.clock(), task_queue, credential.queue)
        return _possible_slots(self.state, task_queue, credential, slots, might_take)

    def jobs_left(self, task_queue: TaskQueue) -> int:
        """Return how many jobs of the task queue wait, or are taken by matches that may fail."""
        with self.state.lock:
            return self.state.waiting.jobs_left(task_queue.id)

    def slot_class(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return a key that is equal for pilots that are alike."""
        now = self.clock()
        with self.state.lock:
            keys = frozenset(_slot_key(self.state, now, credential.queue, slot) for slot in slots)
        return credential.queue, credential.vos, keys


def could_match(
    state: ServerState, now: datetime, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
) -> PossibleSlots:
    """Return with which slots a waiting pilot could take jobs of the task queue."""
    might_take = partial(_might_take, state, now, task_queue, credential.queue)
    return _possible_slots(state, task_queue, credential, slots, might_take)


def _possible_slots(
    state: ServerState,
    task_queue: TaskQueue,
    credential: PilotCredential,
    slots: Sequence[SlotOffer],
    might_take: Callable[[SlotOffer], bool],
) -> PossibleSlots:
    found = PossibleSlots.NONE
    # All slots of a call have the isolation of their pilot.
    queue, vos = credential.queue, credential.vos
    if not slots or not PilotAccess(state.queue_access, queue, vos, slots[0].isolation).admits(task_queue):
        return found
    if state.throttles and throttles_at(state, credential.queue):
        return found  # a queue with an open breaker gets its probes when its pilots ask again
    with state.lock:
        for slot in slots:
            slots_of_kind = PossibleSlots.FREE_SLOT if slot.occupied is None else PossibleSlots.OCCUPIED_SLOT
            if slots_of_kind not in found and might_take(slot):
                found |= slots_of_kind
    return found


def _might_take(state: ServerState, now: datetime, task_queue: TaskQueue, queue: QueueId, slot: SlotOffer) -> bool:
    if not fits(task_queue, slot, state.rules.end_margin):
        return False
    evaluator = _evaluator(state, now, queue, slot)
    if evaluator is None:
        return True
    if evaluator.policy.fault:
        return False
    return _differs_by_job(state, evaluator, task_queue) or _is_wanted(evaluator, slot, _job(state, now, task_queue))


def _might_take_at_best(
    state: ServerState, now: datetime, task_queue: TaskQueue, queue: QueueId, slot: SlotOffer
) -> bool:
    if not fits(task_queue, roomy(slot), state.rules.end_margin):
        return False
    evaluator = _evaluator(state, now, queue, slot)
    if evaluator is None:
        return True
    if evaluator.policy.fault:
        return False
    if _differs_by_job(state, evaluator, task_queue):
        return True
    return not evaluator.whole_class_rejects(_job(state, now, task_queue))


def _evaluator(state: ServerState, now: datetime, queue: QueueId, slot: SlotOffer) -> MatchPolicyEvaluator | None:
    """Return the slot's policy evaluator; None = parts of its ad have expired, and its pilot has to send them again."""
    policy = state.policies.policy(slot, queue)
    return None if policy is None else state.policies.evaluator(policy, EvaluationTime(now))


def _differs_by_job(state: ServerState, evaluator: MatchPolicyEvaluator, task_queue: TaskQueue) -> bool:
    return evaluator.differs_by_job(state.policies.views.view(task_queue))


def _job(state: ServerState, now: datetime, task_queue: TaskQueue) -> JobSnapshot:
    priority = partial(state.shares.user_priority, task_queue.account, now)
    return JobSnapshot(state.policies.views.view(task_queue), task_queue.traits, priority)


def _is_wanted(evaluator: MatchPolicyEvaluator, slot: SlotOffer, job: JobSnapshot) -> bool:
    if not evaluator.accepts(job):
        return False
    if slot.occupied is None:
        return True
    rank = evaluator.rank(job)
    return rank > slot.occupied.rank or (rank == slot.occupied.rank and bool(evaluator.policy.preemption_requirements))


def _slot_key(state: ServerState, now: datetime, queue: QueueId, slot: SlotOffer) -> Hashable:
    evaluator = _evaluator(state, now, queue, slot)
    policy = None if evaluator is None else (bool(evaluator.policy.fault), evaluator.start_key)
    return slot.occupied is None, slot.isolation, size_of(roomy(slot)), policy


def roomy(slot: SlotOffer) -> SlotOffer:
    """Return the slot with the most room and time that an alike slot may have."""
    free = slot.free
    room = Amounts(free.cpus, _next_power(free.memory_mib), _next_power(free.disk_mib), free.gpus)
    left = slot.time_left
    time_left = None if left is None else timedelta(seconds=_next_power(math.ceil(left.total_seconds())))
    return slot._replace(free=room, time_left=time_left, cpu_power=float(_next_power(math.ceil(slot.cpu_power))))


def _next_power(number: int) -> int:
    """Return the least power of two that is no less; 0 for 0 and below."""
    return 1 << (number - 1).bit_length() if number > 0 else 0
