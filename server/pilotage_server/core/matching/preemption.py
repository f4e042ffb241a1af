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
from pilotage_server.core.matching.fair_order import Candidate
from pilotage_server.core.matching.slot_classes import SlotClass
from pilotage_server.core.matching.slot_match import Fit, MatchContext, MatchRequest, MissingHeads, SlotMatch
from pilotage_server.core.matching.slot_policy import EvaluationTime
from pilotage_server.core.queueing.waiting_jobs import WaitingJobs

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
    whether new jobs of it are still offered to free slots first.
    """

    occupants: Mapping[str, tuple[Occupant, Account]]
    orders: VacateOrders
    server_wide: str = ""
    is_offered: Callable[[int], bool] = field(default=lambda _: False)


def preemption_order(slots: Iterable[SlotOffer], rules: PreemptionRules) -> tuple[SlotOffer, ...]:
    """Return the occupied ones of the slots in the order of service, those with an earlier order first.

    Earlier orders are removed, and added again where they still hold.
    """
    for occupant, _ in rules.occupants.values():
        rules.orders.remove(occupant)
    occupied = [slot for slot in slots if slot.occupied is not None and slot.name in rules.occupants]
    return tuple(sorted(occupied, key=lambda slot: slot.occupied is not None and slot.occupied.ordered, reverse=True))


class OccupiedSlotMatch(SlotMatch):
    """The search for a job that is better for an occupied slot than its present one."""

    __slots__ = ("_rank_now", "_rules", "_user")

    def __init__(
        self,
        context: MatchContext,
        request: MatchRequest,
        slot: SlotOffer,
        slot_class: SlotClass,
        rules: PreemptionRules,
    ) -> None:
        assert slot.occupied is not None, "only occupied slots are passed here"
        self._rank_now = slot.occupied.rank
        self._rules = rules
        self._user = rules.occupants[slot.name][1]
        super().__init__(context, request, slot, slot_class)

    def order(self, fit: Fit) -> VacateOrder:
        """Return the order to vacate the slot for the job, which counts against the waiting jobs from now on."""
        better, rank = fit.candidate.waiting.task_queue.account, self._rank_of(fit)
        occupant, user = self._rules.occupants[self.slot.name]
        self._rules.orders.add(occupant, fit.candidate.waiting.task_queue.id, self._request.now)
        reason = f"the slot's RANK of a waiting job of {better} is {rank:g}, of this one {self._rank_now:g}"
        if rank == self._rank_now:
            reason = f"{better} has a job waiting for it, with user priority {self._priority(better):.2f}"
            reason += f" to {self._priority(user):.2f}"
        return VacateOrder(self.slot.name, reason, by_rank=rank > self._rank_now)

    def _fit(self, candidate: Candidate) -> Fit | MissingHeads | None:
        found = super()._fit(candidate) if self._has_unserved_jobs(candidate.waiting) else None
        return None if isinstance(found, Fit) and not self._is_better(found) else found

    def _tiers_of_slot(self) -> deque[int]:
        """Return the task queues by the slot's RANK that may have a better job; a claim makes no difference."""
        has_requirements = self._policy is not None and bool(self._policy.preemption_requirements)
        least = self._rank_now
        return deque(
            tier.bits for tier in self._by_rank() if tier.rank > least or (has_requirements and tier.rank == least)
        )

    def _time(self) -> EvaluationTime:
        return EvaluationTime(self._request.now, self._priority(self._user))

    def _has_unserved_jobs(self, waiting: WaitingJobs) -> bool:
        """Whether a job of the task queue waits without a slot that is free, about to look, or vacating for it."""
        ordered = self._rules.orders.outstanding(waiting.task_queue.id, self._request.now)
        return waiting.count > ordered and not self._rules.is_offered(waiting.task_queue.id)

    def _is_better(self, fit: Fit) -> bool:
        rank, task_queue = self._rank_of(fit), fit.candidate.waiting.task_queue
        if rank != self._rank_now or task_queue.account == self._user:
            return rank > self._rank_now
        job = self._snapshot(task_queue, fit.single)
        return self._slot_evaluator().allows_preemption(job, self._rules.server_wide)

    def _rank_of(self, fit: Fit) -> float:
        return self._slot_evaluator().rank(self._snapshot(fit.candidate.waiting.task_queue, fit.single))

    def _priority(self, account: Account) -> float:
        return self._context.shares.user_priority(account, self._request.now)
