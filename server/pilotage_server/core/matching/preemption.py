"""Which occupied slots are to vacate for better jobs: rank preemption and priority preemption.

Rules
-----
- A slot gets a vacate order with a reason. A job is bound to it only when it is free, like to any other slot.
- By rank: the slot's RANK of a waiting job is higher than that of its present job. Nothing else is evaluated.
- By priority: another user's job of at least that RANK, for which the slot's PREEMPTION_REQUIREMENTS is true, and the
  server's own where it has one.
- No job makes two slots vacate: recent orders count against the waiting jobs. Jobs that free slots may take, in this
  request or in another that is about to look, cause no order.

Source: HTCondor's negotiator, reference §1.5.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.values.accounts import Account
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.matching.general_matcher import NeedsJobAds, OpenSlot, OpenSlots
from pilotage_server.core.queueing.task_queue import TaskQueue

ORDER_LIFE = timedelta(minutes=1)
"""An order that its slot does not ask about again expires after so long."""


class Occupant(NamedTuple):
    """The attempt in a slot."""

    stamp: str
    job_id: int
    attempt: int


class VacateOrders:
    """The recent vacate orders, each for a job of a task queue."""

    def __init__(self) -> None:
        self._orders: OrderedDict[Occupant, tuple[int, datetime]] = OrderedDict()
        self._counts: Counter[int] = Counter()

    def add(self, occupant: Occupant, task_queue_id: int, now: datetime) -> None:
        """Add an order to an attempt; it replaces an earlier one."""
        self.remove(occupant)
        self._orders[occupant] = (task_queue_id, now + ORDER_LIFE)
        self._counts[task_queue_id] += 1

    def remove(self, occupant: Occupant) -> None:
        """Remove the order to an attempt, if there is one."""
        if occupant in self._orders:
            task_queue_id, _ = self._orders.pop(occupant)
            self._counts[task_queue_id] -= 1

    def outstanding(self, task_queue_id: int, now: datetime) -> int:
        """Return how many slots vacate for jobs of a task queue."""
        while self._orders:
            occupant, (_, until) = next(iter(self._orders.items()))
            if until > now:
                break
            self.remove(occupant)
        return self._counts[task_queue_id]


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """The input of a round: the attempts in the slots, and the accounts that are charged for them, by slot.

    `server_wide` is the server's own PREEMPTION_REQUIREMENTS, "" = none. `is_offered` returns for a task queue's id
    whether free slots are about to look for its jobs.
    """

    now: datetime
    occupants: Mapping[str, tuple[Occupant, Account]]
    orders: VacateOrders
    server_wide: str = ""
    is_offered: Callable[[int], bool] = field(default=lambda _: False)


class PreemptionRound:
    """One request's way through its occupied slots, those with an earlier order first."""

    def __init__(self, slots: Iterable[SlotOffer], open_slots: OpenSlots, rules: PreemptionRules) -> None:
        occupied = [slot for slot in slots if slot.name in rules.occupants]
        occupied.sort(key=lambda slot: slot.occupied is None or not slot.occupied.ordered)
        self._left = deque(map(open_slots.open, occupied))
        self._open_slots = open_slots
        self._rules = rules
        for occupant, _ in rules.occupants.values():
            rules.orders.remove(occupant)  # added again where they still hold

    def next_vacate(self) -> VacateOrder | NeedsJobAds | None:
        """Return which slot is to vacate next, or whose ads are needed first; None = the round is over."""
        while self._left:
            found = self._found_for(self._left[0])
            if isinstance(found, NeedsJobAds):
                return found
            self._left.popleft()
            if found is not None:
                return found
        return None

    def _found_for(self, open_slot: OpenSlot) -> VacateOrder | NeedsJobAds | None:
        rank = _rank(open_slot)
        for tier in open_slot.by_rank():
            if tier.rank < rank or (tier.rank == rank and not open_slot.evaluator.policy.preemption_requirements):
                return None
            for _, waiting in self._open_slots.order.walk(tier.among):
                found = self._wanted_by(waiting.task_queue, open_slot)
                if found is not None:
                    return found
        return None

    def _wanted_by(self, task_queue: TaskQueue, open_slot: OpenSlot) -> VacateOrder | NeedsJobAds | None:
        fit = open_slot.fit(task_queue) if self._has_unserved_jobs(task_queue) else None
        if fit is None or isinstance(fit, NeedsJobAds):
            return fit
        occupant, user = self._rules.occupants[open_slot.slot.name]
        rank, job_rank = _rank(open_slot), open_slot.evaluator.rank(fit.job)
        is_better_user = task_queue.account != user and open_slot.evaluator.allows_preemption(
            fit.job, self._rules.server_wide
        )
        if job_rank < rank or (job_rank == rank and not is_better_user):
            return None
        self._rules.orders.add(occupant, task_queue.id, self._rules.now)
        if job_rank > rank:
            reason = f"the slot's RANK of a waiting job of {task_queue.account} is {job_rank:g}, of this one {rank:g}"
        else:
            reason = self._priority_reason(task_queue.account, user)
        return VacateOrder(open_slot.slot.name, reason, by_rank=job_rank > rank)

    def _has_unserved_jobs(self, task_queue: TaskQueue) -> bool:
        """Whether a job of the task queue waits without a slot that is free, about to look, or vacating for it."""
        ordered = self._rules.orders.outstanding(task_queue.id, self._rules.now)
        return self._open_slots.remaining(task_queue) > ordered and not self._rules.is_offered(task_queue.id)

    def _priority_reason(self, better: Account, worse: Account) -> str:
        priority = self._open_slots.ranked_jobs.priority
        return f"{better} has a job waiting for it, with user priority {priority(better):.2f} to {priority(worse):.2f}"


def _rank(open_slot: OpenSlot) -> float:
    occupied = open_slot.slot.occupied
    assert occupied is not None, "only occupied slots are passed here"
    return occupied.rank
