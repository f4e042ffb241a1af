"""Which occupied slots are wanted for better jobs: rank preemption and priority preemption under pull.

Rules
-----
A slot is told to vacate, and why; a job is bound to it only when it is free, like to any other slot. By rank: the
slot's RANK of a waiting job is above that of its own; nothing else is consulted. By priority: another user's job of
at least that RANK, of which the slot's PREEMPTION_REQUIREMENTS is true, and the server's own where it has one. No
job makes two slots vacate: what was ordered lately counts against what waits. Jobs that free slots may take, in this
request or in another that is about to look, order nothing. Source: HTCondor's negotiator, reference §1.5.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage_server.core.accounting import Account
from pilotage_server.core.openings import HeadsWanted, Opening, Openings
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue

ORDER_LIFE = timedelta(minutes=1)
"""An order that its slot does not ask about again is forgotten after so long."""


@dataclass(frozen=True, slots=True)
class Vacate:
    """Ask a pilot for an occupied slot; `by_rank` = the slot itself prefers the other job."""

    slot: str
    reason: str
    by_rank: bool


class Occupant(NamedTuple):
    """The attempt in a slot."""

    stamp: str
    job_id: int
    attempt: int


class Orders:
    """The slots that were told to vacate lately, each for a job of a task queue."""

    def __init__(self) -> None:
        self._orders: OrderedDict[Occupant, tuple[int, datetime]] = OrderedDict()
        self._counts: Counter[int] = Counter()

    def give(self, occupant: Occupant, task_queue_id: int, now: datetime) -> None:
        """Take note of an order."""
        self.withdraw(occupant)
        self._orders[occupant] = (task_queue_id, now + ORDER_LIFE)
        self._counts[task_queue_id] += 1

    def withdraw(self, occupant: Occupant) -> None:
        """Forget the order to an attempt, if there is one."""
        if occupant in self._orders:
            task_queue_id, _ = self._orders.pop(occupant)
            self._counts[task_queue_id] -= 1

    def outstanding(self, task_queue_id: int, now: datetime) -> int:
        """Return how many slots vacate for jobs of a task queue."""
        while self._orders:
            occupant, (_, until) = next(iter(self._orders.items()))
            if until > now:
                break
            self.withdraw(occupant)
        return self._counts[task_queue_id]


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """What preemption goes by: whose attempts are in the slots, and who is charged for them, by slot.

    `server_wide` is the server's own PREEMPTION_REQUIREMENTS, "" = none. `is_offered` tells of a task queue's id
    whether free slots are about to look for its jobs.
    """

    now: datetime
    occupants: Mapping[str, tuple[Occupant, Account]]
    orders: Orders
    server_wide: str = ""
    is_offered: Callable[[int], bool] = field(default=lambda _: False)


class PreemptionRound:
    """One request's way through its occupied slots, those first that have been told to vacate before."""

    def __init__(self, slots: Iterable[SlotOffer], openings: Openings, rules: PreemptionRules) -> None:
        occupied = [slot for slot in slots if slot.name in rules.occupants]
        occupied.sort(key=lambda slot: slot.occupied is None or not slot.occupied.ordered)
        self._left = deque(map(openings.open, occupied))
        self._openings = openings
        self._rules = rules
        for occupant, _ in rules.occupants.values():
            rules.orders.withdraw(occupant)  # to be given again where they still hold

    def next_vacate(self) -> Vacate | HeadsWanted | None:
        """Return which slot is to vacate next, or whose ads are to be brought first; None = the round is over."""
        while self._left:
            found = self._found_for(self._left[0])
            if isinstance(found, HeadsWanted):
                return found
            self._left.popleft()
            if found is not None:
                return found
        return None

    def _found_for(self, opening: Opening) -> Vacate | HeadsWanted | None:
        rank = _rank(opening)
        for tier in opening.by_rank():
            if tier.rank < rank or (tier.rank == rank and not opening.judge.policy.preemption_requirements):
                return None
            for _, waiting in self._openings.order.walk(tier.among):
                found = self._wanted_by(waiting.task_queue, opening)
                if found is not None:
                    return found
        return None

    def _wanted_by(self, task_queue: TaskQueue, opening: Opening) -> Vacate | HeadsWanted | None:
        fit = opening.fit(task_queue) if self._is_spare(task_queue) else None
        if fit is None or isinstance(fit, HeadsWanted):
            return fit
        occupant, user = self._rules.occupants[opening.slot.name]
        rank, liking = _rank(opening), opening.judge.rank(fit.job)
        is_better_user = task_queue.account != user and opening.judge.gives_way(fit.job, self._rules.server_wide)
        if liking < rank or (liking == rank and not is_better_user):
            return None
        self._rules.orders.give(occupant, task_queue.id, self._rules.now)
        if liking > rank:
            reason = f"the slot's RANK of a waiting job of {task_queue.account} is {liking:g}, of this one {rank:g}"
        else:
            reason = self._priorities(task_queue.account, user)
        return Vacate(opening.slot.name, reason, by_rank=liking > rank)

    def _is_spare(self, task_queue: TaskQueue) -> bool:
        """Whether a job of the task queue waits for which no slot is free, about to be asked, or told to vacate."""
        ordered = self._rules.orders.outstanding(task_queue.id, self._rules.now)
        return self._openings.left(task_queue) > ordered and not self._rules.is_offered(task_queue.id)

    def _priorities(self, better: Account, worse: Account) -> str:
        priority = self._openings.applicants.priority
        return f"{better} has a job waiting for it, with user priority {priority(better):.2f} to {priority(worse):.2f}"


def _rank(opening: Opening) -> float:
    occupied = opening.slot.occupied
    assert occupied is not None, "only occupied slots are opened here"
    return occupied.rank
