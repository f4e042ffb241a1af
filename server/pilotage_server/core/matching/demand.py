"""Demand: the work that queues could take now, their idle slots, and how often pilots returned empty.

Rules
-----
- Demand uses the predicate of the match, so that no pilot is sent for work that it would not get. A task queue is one
  demand, however many queues could take it, so that its jobs are counted once. A banned queue takes nothing.
- Jobs that a running limit holds back are no demand. The room of a limit is shared by all jobs that it counts, so the
  director gets it beside the demands: which jobs and queues get the pilots is its decision.
- A quota in cores is such a limit where groups may use no surplus. It counts the cores that jobs ask for.
- A pilot returned empty when it never ran a job and ended for lack of work or time, or was ended by its batch system
  without our order. Pilots that were sent before the first of them had returned form one sending. A pilot that ran
  a job clears its queue of all pilots that were sent before it, and together with it.
- Every job should find a pilot, and few requests should stay empty. So each idle slot that may take jobs asks with
  the same probability, such that slightly more slots ask than there are jobs. Without known idle slots all ask.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pilotage.resources.eligibility import Ban, next_downtime
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.tree import MAX_WALL_TIME, QueueId
from pilotage.values.accounts import Account, GroupId
from pilotage.values.amounts import Amounts
from pilotage.values.demand import Demand, EmptyReturns, IdleSlots, LimitRoom
from pilotage.values.isolation import Isolation
from pilotage.values.pilots import STOP_MARGIN_S
from pilotage_server.core.accounting.fair_share import ShareRound
from pilotage_server.core.accounting.limits import LimitIndex, counts_for
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import WaitingTaskQueue
from pilotage_server.core.rules import RunningLimit


def demand_of(
    waiting: WaitingTaskQueue,
    open_queues: Mapping[int, QueueId],
    reach: QueueAccess,
    left_s: Mapping[int, float],
) -> Demand | None:
    """Return the work for the queues, which are given by their index in the list of the request; limits left out.

    `left_s` = the longest time in seconds that a pilot sent now has for a job, by queue; it lacks queues without such
    a limit.
    """
    task_queue = waiting.task_queue
    indexes = tuple(index for index, queue in open_queues.items() if reach.admits(task_queue, queue))
    wall_time_s = task_queue.needs.wall_time_s
    if left_s and wall_time_s is not None:
        indexes = tuple(index for index in indexes if wall_time_s <= left_s.get(index, wall_time_s))
    if not indexes:
        return None
    return Demand(
        pool_id=task_queue.pool_id,
        vo=task_queue.account.vo,
        waiting=waiting.count,
        amounts=task_queue.traits.amounts,
        cpu_time_s=task_queue.needs.cpu_time_s,
        queue_indexes=indexes,
    )


class LimitRooms:
    """The room below limits and quotas at the queues of a request; `running` = the jobs that each limit counts."""

    def __init__(
        self,
        queues: Mapping[int, QueueId],
        limits: LimitIndex,
        running: Mapping[RunningLimit, int],
        quotas: Mapping[GroupId, LimitRoom],
    ) -> None:
        self._quotas = quotas
        self._at = {index: here for index, queue in queues.items() if (here := limits.at(queue))}
        self._rooms = {limit: max(0, limit.at_most - jobs) for limit, jobs in running.items()}
        self._queues: dict[RunningLimit, list[int]] = {}
        for index, here in self._at.items():
            for limit in here:
                self._queues.setdefault(limit, []).append(index)
        self._numbers: dict[RunningLimit | GroupId, int] = {}

    def bounded(self, demand: Demand, task_queue: TaskQueue) -> Demand | None:
        """Return the demand of a task queue without what limits and its quota hold back; None = they hold back all."""
        below_limits = self._below_limits(demand, task_queue.traits)
        group = task_queue.account.group_id
        if below_limits is None or group not in self._quotas:
            return below_limits
        number, quota = self._numbers.setdefault(group, len(self._numbers)), self._quotas[group]
        jobs = min(below_limits.waiting, quota.room // quota.size(demand.amounts))
        numbers = (*below_limits.limit_indexes, number)
        return replace(below_limits, waiting=jobs, limit_indexes=numbers) if jobs else None

    def _below_limits(self, demand: Demand, traits: Traits) -> Demand | None:
        if not self._at:
            return demand
        counting = {limit for limit in self._queues if counts_for(limit, traits)}
        here = {index: counting.intersection(self._at.get(index, ())) for index in demand.queue_indexes}
        counting = set().union(*here.values())
        if not counting:
            return demand
        numbers = [self._numbers.setdefault(limit, len(self._numbers)) for limit in self._queues if limit in counting]
        open_ = {index: limits for index, limits in here.items() if all(self._rooms[limit] for limit in limits)}
        if not open_:
            return None
        most = demand.waiting
        if all(open_.values()):  # queues with the same limits share their room
            most = sum(min(map(self._rooms.__getitem__, limits)) for limits in set(map(frozenset, open_.values())))
        return replace(
            demand, waiting=min(demand.waiting, most), queue_indexes=tuple(open_), limit_indexes=tuple(numbers)
        )

    @property
    def counting(self) -> tuple[LimitRoom, ...]:
        """The limits and quotas that count jobs of the demands so far."""
        return tuple(
            self._quotas[each]
            if isinstance(each, GroupId)
            else LimitRoom(str(each), self._rooms[each], tuple(self._queues[each]))
            for each in self._numbers
        )


def quota_rooms(shares: ShareRound, accounts: Iterable[Account], queues: Iterable[int]) -> dict[GroupId, LimitRoom]:
    """Return the room of each group with a quota in cores and no surplus, at all these queues of the request."""
    indexes = tuple(queues)
    return {
        each.group_id: LimitRoom(f"the quota of {each.group_id}", ceil(room), indexes, counts_cores=True)
        for each in accounts
        if (room := shares.room(each)) is not None
    }


def job_time_of_pilots_s(queue: EffectiveQueue, end_margin: timedelta) -> float | None:
    """Return the longest time in seconds for a job of a pilot of the queue; None = `MaxWallTime` is not stated."""
    life_s = queue.stated_amount(MAX_WALL_TIME)
    return None if life_s is None else float(life_s) - STOP_MARGIN_S - end_margin.total_seconds()


def longest_job_s(queue: EffectiveQueue, bans: Iterable[Ban], end_margin: timedelta, now: datetime) -> float | None:
    """Return the longest time in seconds that a job of a pilot sent now may take; None = any.

    A job ends before its pilot does, and before the next downtime.
    """
    coming = next_downtime(bans, queue.id, now)
    until_downtime_s = (coming.downtime - now).total_seconds() if coming and coming.downtime else None
    ends = (until_downtime_s, job_time_of_pilots_s(queue, end_margin))
    return min((end for end in ends if end is not None), default=None)


def without_banned(queues: Sequence[QueueId], banned: Iterable[QueueId]) -> dict[int, QueueId]:
    """Return the queues that are not banned, by their index in the list."""
    closed = frozenset(banned)
    return {index: queue for index, queue in enumerate(queues) if queue not in closed}


def idle_slots(slots: Iterable[SlotInfo]) -> dict[QueueId, tuple[IdleSlots, ...]]:
    """Return the free slots of each queue that has any, without those of pilots that are bound to an owner."""
    known = tuple(slots)
    bound = {info.pilot_stamp for info in known if info.isolation is Isolation.OWNER and info.slot.job_id}
    idle: dict[QueueId, Counter[Amounts]] = defaultdict(Counter)
    for info in known:
        if info.is_open and info.pilot_stamp not in bound:
            idle[info.queue][info.slot.free] += 1
    return {queue: tuple(IdleSlots(free, count) for free, count in counts.items()) for queue, counts in idle.items()}


EMPTY_RETURN_WINDOW = timedelta(days=1)
"""For so long a pilot that returned empty counts."""


@dataclass(frozen=True, slots=True)
class EmptyPilot:
    """A pilot that returned empty: when it was registered, and when it ended."""

    registered: datetime
    ended: datetime


def empty_returns(pilots: Iterable[EmptyPilot], proven: datetime | None, now: datetime) -> EmptyReturns | None:
    """Return the summary of the pilots of one queue that returned empty; None = there are none.

    `proven` is when the last pilot of the queue that ran a job was registered; None = none has run one.
    """
    counted = [pilot for pilot in pilots if proven is None or pilot.registered > proven]
    if not counted:
        return None
    sendings, known = 0, None
    for pilot in sorted(counted, key=lambda pilot: pilot.registered):
        if known is None or pilot.registered >= known:
            sendings, known = sendings + 1, pilot.ended
        known = min(known, pilot.ended)
    return EmptyReturns(len(counted), sendings, now - max(pilot.ended for pilot in counted))


SPARE_FACTOR = 1.5
"""The number of slots that are asked for each job: some of them do not fit or come late."""

MIN_ANSWERS = 4
"""The number of slots that are asked besides, so that by chance none at all answers at most once in 200 times."""


def answer_probability(jobs: int, idle_slots: Mapping[str, int], queues: Collection[str] | None) -> float:
    """Return the probability by which an idle slot asks for new jobs.

    `idle_slots` by queue; `queues` are those that can run the jobs, None = any may.
    """
    able = sum(count for queue, count in idle_slots.items() if queues is None or queue in queues)
    return 1.0 if able == 0 else min(1.0, (SPARE_FACTOR * jobs + MIN_ANSWERS) / able)
