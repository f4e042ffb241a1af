"""Which pilots that wait might get a job that has come, told from memory alone; the match itself decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import IntFlag
from functools import partial

from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.job_views import JobNow
from pilotage_server.core.slot_policies import Moment, SlotJudge
from pilotage_server.core.slots import SlotOffer, fits
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.match_slots import door
from pilotage_server.operations.world import World


class Chance(IntFlag):
    """Which kinds of slots a pilot has for a job."""

    NONE = 0
    OCCUPIED_SLOT = 1
    FREE_SLOT = 2


def chance(
    world: World, now: datetime, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
) -> Chance:
    """Return what a pilot that waits with these slots might have for jobs of the task queue."""
    found = Chance.NONE
    if not door(world, credential).can_go(task_queue):
        return found
    with world.lock:
        for slot in slots:
            kind = Chance.FREE_SLOT if slot.occupied is None else Chance.OCCUPIED_SLOT
            if kind not in found and _might_take(world, now, task_queue, credential, slot):
                found |= kind
    return found


def _might_take(
    world: World, now: datetime, task_queue: TaskQueue, credential: PilotCredential, slot: SlotOffer
) -> bool:
    if not fits(task_queue, slot, world.rules.end_margin):
        return False
    policy = world.policies.policy(slot, credential.queue)
    if policy is None:  # parts of its ad were forgotten while it waited: it has to bring them again
        return True
    if policy.fault:
        return False
    judge = world.policies.ask(policy, Moment(now))
    view = world.policies.views.view(task_queue)
    if judge.asks_singly(view):
        return True
    priority = partial(world.shares.user_priority, task_queue.account, now)
    return _is_wanted(judge, slot, JobNow(view, task_queue.traits, priority))


def _is_wanted(judge: SlotJudge, slot: SlotOffer, job: JobNow) -> bool:
    if not judge.takes(job):
        return False
    if slot.occupied is None:
        return True
    rank = judge.rank(job)
    return rank > slot.occupied.rank or (rank == slot.occupied.rank and bool(judge.policy.preemption_requirements))
