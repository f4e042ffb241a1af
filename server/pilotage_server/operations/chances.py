"""Which pilots that wait might get a job that has come, told from memory alone; the match itself decides.

Rules
-----
Pilots that wait are asked together where they are alike: at the same queue, for the same VOs, with slots that differ
only within `roomy` and of which START reaches the same. What holds of one of them at best holds of none of them any
better; what it leaves open, a pilot is asked for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntFlag
from functools import partial

from pilotage.clock import Clock
from pilotage.resource_tree import QueueId
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.job_views import JobNow
from pilotage_server.core.slot_policies import Moment, SlotJudge
from pilotage_server.core.slots import SlotOffer, fits, size_of
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.match_slots import door
from pilotage_server.operations.trials import closed_at
from pilotage_server.operations.world import World


class Chance(IntFlag):
    """Which kinds of slots a pilot has for a job."""

    NONE = 0
    OCCUPIED_SLOT = 1
    FREE_SLOT = 2


@dataclass(frozen=True, slots=True)
class Chances:
    """The chances of pilots, over one server's memory."""

    world: World
    clock: Clock

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what a pilot that waits with these slots might have for jobs of the task queue."""
        return chance(self.world, self.clock(), task_queue, credential, slots)

    def at_best(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Chance:
        """Return what the pilot, and all that are alike, might have at best."""
        might_take = partial(_might_take_at_best, self.world, self.clock(), task_queue, credential.queue)
        return _chance(self.world, task_queue, credential, slots, might_take)

    def are_left(self, task_queue: TaskQueue) -> bool:
        """Whether any jobs of the task queue are left: waiting, or taken by a match that may fail yet."""
        with self.world.lock:
            return self.world.waiting.has_any(task_queue.id)

    def alike(self, credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        """Return what is equal for pilots that are alike."""
        now = self.clock()
        with self.world.lock:
            kinds = frozenset(_kind(self.world, now, credential.queue, slot) for slot in slots)
        return credential.queue, credential.vos, kinds


def chance(
    world: World, now: datetime, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
) -> Chance:
    """Return what a pilot that waits with these slots might have for jobs of the task queue."""
    might_take = partial(_might_take, world, now, task_queue, credential.queue)
    return _chance(world, task_queue, credential, slots, might_take)


def _chance(
    world: World,
    task_queue: TaskQueue,
    credential: PilotCredential,
    slots: Sequence[SlotOffer],
    might_take: Callable[[SlotOffer], bool],
) -> Chance:
    found = Chance.NONE
    if not door(world, credential).can_go(task_queue) or (world.throttles and closed_at(world, credential.queue)):
        return found  # a throttled queue gets its single jobs when its pilots ask anew
    with world.lock:
        for slot in slots:
            kind = Chance.FREE_SLOT if slot.occupied is None else Chance.OCCUPIED_SLOT
            if kind not in found and might_take(slot):
                found |= kind
    return found


def _might_take(world: World, now: datetime, task_queue: TaskQueue, queue: QueueId, slot: SlotOffer) -> bool:
    if not fits(task_queue, slot, world.rules.end_margin):
        return False
    judge = _judge(world, now, queue, slot)
    if judge is None:
        return True
    if judge.policy.fault:
        return False
    return _is_asked_singly(world, judge, task_queue) or _is_wanted(judge, slot, _job(world, now, task_queue))


def _might_take_at_best(world: World, now: datetime, task_queue: TaskQueue, queue: QueueId, slot: SlotOffer) -> bool:
    if not fits(task_queue, roomy(slot), world.rules.end_margin):
        return False
    judge = _judge(world, now, queue, slot)
    if judge is None:
        return True
    if judge.policy.fault:
        return False
    return _is_asked_singly(world, judge, task_queue) or not judge.all_alike_refuse(_job(world, now, task_queue))


def _judge(world: World, now: datetime, queue: QueueId, slot: SlotOffer) -> SlotJudge | None:
    """Return the slot's policy; None = parts of its ad were forgotten while it waited: it has to bring them again."""
    policy = world.policies.policy(slot, queue)
    return None if policy is None else world.policies.ask(policy, Moment(now))


def _is_asked_singly(world: World, judge: SlotJudge, task_queue: TaskQueue) -> bool:
    return judge.asks_singly(world.policies.views.view(task_queue))


def _job(world: World, now: datetime, task_queue: TaskQueue) -> JobNow:
    priority = partial(world.shares.user_priority, task_queue.account, now)
    return JobNow(world.policies.views.view(task_queue), task_queue.traits, priority)


def _is_wanted(judge: SlotJudge, slot: SlotOffer, job: JobNow) -> bool:
    if not judge.takes(job):
        return False
    if slot.occupied is None:
        return True
    rank = judge.rank(job)
    return rank > slot.occupied.rank or (rank == slot.occupied.rank and bool(judge.policy.preemption_requirements))


def _kind(world: World, now: datetime, queue: QueueId, slot: SlotOffer) -> Hashable:
    judge = _judge(world, now, queue, slot)
    policy = None if judge is None else (bool(judge.policy.fault), judge.start_reaches)
    return slot.occupied is None, size_of(roomy(slot)), policy


def roomy(slot: SlotOffer) -> SlotOffer:
    """Return the slot with a little more room and time, as alike slots have at most."""
    free = slot.free
    room = Amounts(free.cpus, _next_power(free.memory_mib), _next_power(free.disk_mib), free.gpus)
    left = slot.time_left
    time_left = None if left is None else timedelta(seconds=_next_power(math.ceil(left.total_seconds())))
    return slot._replace(free=room, time_left=time_left, cpu_power=float(_next_power(math.ceil(slot.cpu_power))))


def _next_power(number: int) -> int:
    """Return the least power of two that is no less; of nothing, nothing."""
    return 1 << (number - 1).bit_length() if number > 0 else 0
