"""The matcher: chooses waiting jobs for free slots, and finds occupied slots that better jobs want; all in memory.

Rules
-----
- A chosen job is reserved and its account charged at once, so that the next request sees it.
- Each reservation ends once: `confirm` when the database has given a job, `exhaust` when it had none, `unreserve` when
  the response had no room for it or the transaction failed before. Each job that was given ends once: `commit` or
  `roll_back`.
- Where it has to know more jobs of a task queue, or their ads, it asks for them (`NeedsHeads`).
- Of the slots that are left, a job with a Rank takes the one that it ranks highest. A call that has compared many slots
  ends with a rest, so that the lock of the server state is free for others.
- At a pilot that isolates by owner and holds no job, the first job ends the search: it decides the owner, and the pilot
  asks again for its other slots.
- The caller holds the lock of the server state, and never during a database access.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.matching.fair_order import AccountRanking
from pilotage_server.core.matching.job_views import JobViewCache
from pilotage_server.core.matching.preemption import OccupiedSlotMatch, PreemptionRules
from pilotage_server.core.matching.slot_classes import SlotClasses
from pilotage_server.core.matching.slot_match import (
    Fit,
    MatchContext,
    MatchRequest,
    MissingHeads,
    RankedSlots,
    SlotMatch,
)
from pilotage_server.core.matching.slot_policy import SlotPolicies
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import QueueHead

MAX_JOBS_PER_ROUND = 1000
"""The most jobs that a request gets; a pilot asks again for more."""


class Reservation(NamedTuple):
    """A job to claim for a slot: the first of a task queue or, with `job_id`, this one.

    `weight` = the SlotWeight of what it gets. `head` = the reserved job; the database may give another for the first.
    """

    slot: str
    task_queue: TaskQueue
    amounts: Amounts
    weight: float
    head: QueueHead
    job_id: int | None = None


RANK_EFFORT = 25_000
"""After so much effort for jobs with a Rank, `choose` ends with a rest: comparing a slot is 1, judging one `_JUDGED`.

It takes 10 to 30 ms; about 100 ms where all slots have other values, which the caches do not know yet.
"""

_JUDGED = 50
_NOT_JUDGED: tuple[None, None] = (None, None)


class NeedsHeads(NamedTuple):
    """These heads have to be refreshed (`Matcher.refresh_heads`) to go on with `request`."""

    heads: MissingHeads
    request: MatchRequest


class Chosen(NamedTuple):
    """What was reserved, in the order of the slots.

    `rest` None = all slots were served as far as jobs fit them. A request = it took long, go on with this.
    """

    reservations: tuple[Reservation, ...]
    rest: NeedsHeads | MatchRequest | None = None


class Vacates(NamedTuple):
    """The orders to vacate, in the order of the slots; `rest` None = all slots were looked at."""

    orders: tuple[VacateOrder, ...]
    rest: NeedsHeads | None = None


class Matcher:
    """The matcher over the task queues, shares and policies of one server.

    `committed_total` and `exhausted_total` count how reservations have ended since the matcher was made.
    """

    def __init__(
        self,
        waiting: TaskQueueIndex,
        shares: FairShare,
        policies: SlotPolicies,
        end_margin: timedelta,
        rank_effort: int = RANK_EFFORT,
    ) -> None:
        self._classes = SlotClasses(waiting, end_margin)
        self._waiting = waiting
        self._shares = shares
        self._accounts = AccountRanking(waiting)
        self._context = MatchContext(
            JobViewCache(waiting, policies.views), shares, policies, self._accounts, end_margin
        )
        self._rank_effort = rank_effort
        self.committed_total = 0
        self.exhausted_total = 0

    def choose(self, request: MatchRequest, access: QueueAccess) -> Chosen:
        """Reserve jobs for the slots; the caller has checked bans."""
        self._accounts.sync(self._shares.priorities(request.now))
        reservations: list[Reservation] = []
        try:
            rest = self._choose(request, access, reservations)
        except BaseException:
            self._charge(request.now)
            self.unreserve(reservations, request.now)
            raise
        self._charge(request.now)
        return Chosen(tuple(reservations), rest)

    def vacates(self, request: MatchRequest, access: QueueAccess, rules: PreemptionRules) -> Vacates:
        """Return which of the occupied slots of a request are to vacate for better jobs, in order."""
        self._accounts.sync(self._shares.priorities(request.now))
        orders: list[VacateOrder] = []
        for index, slot in enumerate(request.slots):
            slot_class = self._classes.of(slot, request.queue, request.vos, access)
            slot_match = OccupiedSlotMatch(self._context, request, slot, slot_class, rules)
            found = slot_match.find()
            if isinstance(found, MissingHeads):
                rest = request._replace(slots=request.slots[index:], refused=slot_match.refused)
                return Vacates(tuple(orders), NeedsHeads(found, rest))
            if found is not None:
                orders.append(slot_match.order(found))
        return Vacates(tuple(orders))

    def refresh_heads(self, task_queue_id: int, heads: Sequence[QueueHead], limit: int) -> None:
        """Set the first waiting jobs of a task queue, in order, as the database has them.

        Fewer than `limit` = there are no more. Reserved jobs may be among them.
        """
        self._waiting.refresh_heads(task_queue_id, heads, is_all=len(heads) < limit)

    def confirm(self, reservations: Sequence[Reservation], job_ids: Sequence[int]) -> None:
        """Apply the jobs that the database has given for reservations of one task queue.

        For first jobs they may be others than the reserved heads, if another match was quicker.
        """
        firsts = [pair for pair in zip(reservations, job_ids, strict=True) if pair[0].job_id is None]
        if len(firsts) < len(reservations):
            self._waiting.confirm_certain(reservations[0].task_queue.id, len(reservations) - len(firsts))
        if firsts:
            heads, given = [reservation.head for reservation, _ in firsts], [job_id for _, job_id in firsts]
            self._waiting.confirm(reservations[0].task_queue.id, heads, given)

    def commit(self, reservations: Sequence[Reservation], job_ids: Sequence[int]) -> None:
        """Apply the commit of the jobs that were given for these reservations of one task queue."""
        self.committed_total += len(job_ids)
        self._waiting.commit(reservations[0].task_queue.id, job_ids)

    def roll_back(self, reservations: Sequence[Reservation], job_ids: Sequence[int], now: datetime) -> None:
        """Return jobs that were given for these reservations of one task queue, and discharge the accounts."""
        self._uncharge(reservations, now)
        self._waiting.roll_back(reservations[0].task_queue.id, job_ids)

    def exhaust(self, reservations: Sequence[Reservation], now: datetime) -> None:
        """End reservations for which the database had no job.

        A task queue whose first job is missing is empty; a certain job waits again, unless its removal is reported.
        """
        self.exhausted_total += len(reservations)
        self._uncharge(reservations, now)
        for task_queue_id, heads in _first_heads(reservations).items():
            self._waiting.exhaust(task_queue_id, heads)
        self._return_certain(reservations)

    def unreserve(self, reservations: Sequence[Reservation], now: datetime) -> None:
        """Return jobs that the database has not given to their task queues, and discharge the accounts."""
        self._uncharge(reservations, now)
        for task_queue_id, heads in _first_heads(reservations).items():
            self._waiting.unreserve(task_queue_id, heads)
        self._return_certain(reservations)

    def check(self) -> None:
        """Assert the invariants."""
        self._waiting.check()
        self._accounts.check()

    def _choose(
        self, request: MatchRequest, access: QueueAccess, reservations: list[Reservation]
    ) -> NeedsHeads | MatchRequest | None:
        """Serve one slot after the other and return what is left; `reservations` gets the result."""
        left = deque(request.slots)
        slot_matches = _SlotMatches(self._context, self._classes, request, access, self._rank_effort)
        while left and len(reservations) < MAX_JOBS_PER_ROUND:
            first = slot_matches.first(left[0])
            found = first.find()
            if found is None:
                left.popleft()
                continue
            index, slot_match = 0, first
            if isinstance(found, Fit) and found.candidate.waiting.task_queue.traits.rank and len(left) > 1:
                best = slot_matches.best_ranked(found, left, first)
                if best is None:
                    return slot_matches.rest(left, first)
                index, slot_match = best
                found = slot_match.missing_heads(found) or found
            if isinstance(found, MissingHeads):
                return NeedsHeads(found, slot_matches.rest(left, first))
            slot, allocation = left[index], slot_match.allocation(found.candidate.waiting)
            self._reserve(slot, found, slot_match, reservations)
            if slot.binds:
                return None
            remainder = slot.remaining_after(allocation.amounts) if slot.partitionable else None
            if remainder is None:
                del left[index]
            else:
                left[index] = remainder
        return None

    def _reserve(self, slot: SlotOffer, fit: Fit, slot_match: SlotMatch, reservations: list[Reservation]) -> None:
        """Reserve the job for the slot, and its prefetched jobs from the same task queue; a single job has none."""
        candidate, single = fit
        waiting, task_queue = candidate.waiting, candidate.waiting.task_queue
        (amounts, weight), limits = slot_match.allocation(waiting), slot_match.limits
        ahead = min(slot.ahead, MAX_JOBS_PER_ROUND - len(reservations) - 1) if single is None else 0
        job_id = None if single is None else single.head.job_id
        while True:
            head = self._waiting.reserve(waiting) if single is None else self._waiting.claim(waiting, single.head)
            self._accounts.charge(candidate.account, weight)
            reservations.append(Reservation(slot.name, task_queue, amounts, weight, head, job_id))
            if limits is not None:
                limits.add(task_queue.traits)
            if not ahead or not waiting.heads or not slot_match.has_room_for(candidate):
                return
            ahead -= 1

    def _charge(self, now: datetime) -> None:
        """Charge the accounts for the reservations since the last call."""
        for account, cores, runs in self._accounts.take_charges():
            self._shares.charge(account, cores, runs, now)

    def _return_certain(self, reservations: Iterable[Reservation]) -> None:
        for reservation in reservations:
            if reservation.job_id is not None:
                self._waiting.return_certain(reservation.task_queue.id, reservation.job_id)

    def _uncharge(self, reservations: Iterable[Reservation], now: datetime) -> None:
        for reservation in reservations:
            self._shares.end_runs(reservation.task_queue.account, reservation.weight, now)


class _SlotMatches:
    """The searches for the slots of one request, each kept until its slot changes."""

    def __init__(
        self,
        context: MatchContext,
        classes: SlotClasses,
        request: MatchRequest,
        access: QueueAccess,
        rank_effort: int,
    ) -> None:
        self._context = context
        self._classes = classes
        self._request = request
        self._access = access
        self._first: SlotMatch | None = None
        self._by_slot: dict[str, SlotMatch] = {}
        self._ranked = request.ranked or RankedSlots()
        self._rank_effort = rank_effort

    def first(self, slot: SlotOffer) -> SlotMatch:
        """Return the search for the slot that is served now; equal slots without ads share one."""
        if self._first is None or not self._first.applies_to(slot):
            self._first = self.of(slot)
            del self._by_slot[slot.name]
        self._first.slot = slot
        return self._first

    def of(self, slot: SlotOffer) -> SlotMatch:
        """Return the search for a slot."""
        found = self._by_slot.get(slot.name)
        if found is None or found.slot is not slot:
            slot_class = self._classes.of(slot, self._request.queue, self._request.vos, self._access)
            found = self._by_slot[slot.name] = SlotMatch(self._context, self._request, slot, slot_class)
        return found

    def best_ranked(self, fit: Fit, slots: Collection[SlotOffer], first: SlotMatch) -> tuple[int, SlotMatch] | None:
        """Return the slot that the job ranks highest, of the first and of the later ones that accept it, and its index.

        None = the call has taken much effort. Each later slot is judged once for the jobs of a task queue.
        """
        ranks, job = self._ranked.by(fit), first.snapshot(fit)
        best, highest = (0, first), first.rank_by_job(job)
        for index, slot in enumerate(slots):
            if index == 0:
                continue
            if self._rank_effort <= 0:
                return None
            known, rank = ranks.get(slot.name, _NOT_JUDGED)
            if known is not slot:
                slot_match = self.of(slot)
                rank = slot_match.rank_by_job(job) if slot_match.accepts(fit, job) else None
                ranks[slot.name] = slot, rank
                self._rank_effort -= _JUDGED
            if rank is not None and rank > highest and self.of(slot).has_room_for(fit.candidate):
                best, highest = (index, self.of(slot)), rank
        self._rank_effort -= len(slots)
        return best

    def rest(self, left: Iterable[SlotOffer], first: SlotMatch) -> MatchRequest:
        """Return the request to go on with, of which these slots are left; `first` is the search for the first."""
        return self._request._replace(slots=tuple(left), refused=first.refused, ranked=self._ranked)


def _first_heads(reservations: Iterable[Reservation]) -> dict[int, list[QueueHead]]:
    """Return the reserved first jobs by task queue, without certain ones."""
    heads: dict[int, list[QueueHead]] = defaultdict(list)
    for reservation in reservations:
        if reservation.job_id is None:
            heads[reservation.task_queue.id].append(reservation.head)
    return heads
