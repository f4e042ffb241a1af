"""The reference matcher: what the matcher has to choose, written job by job and slot by slot.

Rules
-----
- Slots are served in order; each sees what the round gave to those before it.
- Among fitting jobs go first: those of the owner that holds the slot, the slot's RANK, the group, then the owner
  furthest below their fair share, the higher priority, the older job.
- Prefetched jobs come from the task queue of the first job. Of the slots that are left, a job with a Rank takes the one
  that it ranks highest.
- Cheap checks come first: sizes and times, limits and quotas, then the policies of both sides. What does not fit a slot
  does not fit it later in the round: limits only tighten, and jobs only leave.
- Jobs of a task queue that policies could tell apart are evaluated one by one, a few of the first ones; the caller
  brings their ads.
- At a pilot that isolates by owner and holds no job, the first job ends the round: it decides the owner.
- The round never touches the database. The caller claims each reservation, reports the result and the next head, and
  asks again. The result is deterministic for a given state.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import NamedTuple

from pilotage.classads.library import AdValue
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer, VacateOrder
from pilotage_server.core.accounting.fair_share import Share, ShareRound
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.classads.views import AdView
from pilotage_server.core.matching.job_views import SINGLE_JOBS_AT_ONCE, USER_PRIORITY, JobSnapshot, JobViews, folded
from pilotage_server.core.matching.matcher import MAX_JOBS_PER_ROUND
from pilotage_server.core.matching.preemption import PreemptionRules
from pilotage_server.core.matching.slot_policy import MatchPolicyEvaluator
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.slot_offers import fits, size_of
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingTaskQueue

Among = frozenset[int] | None
"""Ids of the task queues to consider; None = all."""


@dataclass(frozen=True, slots=True)
class MatchScope:
    """The jobs of a round: the waiting jobs of the task queues for which `can_go` is true."""

    waiting: TaskQueueIndex
    can_go: Callable[[TaskQueue], bool]


class WaitingOrder:
    """The waiting jobs in fair order, for one round; it changes only with what the round gives."""

    def __init__(self, scope: MatchScope, shares: ShareRound) -> None:
        self._waiting = scope.waiting
        self._can_go = scope.can_go
        self._shares = shares
        self._ordered: dict[Account, list[WaitingTaskQueue]] = {}

    def walk(self, among: Among = None) -> Iterator[tuple[Share, WaitingTaskQueue]]:
        """Yield the task queues with the shares of their accounts, in fair order."""
        waiting = self._waiting.accounts()
        accounts = sorted((self._shares.share(account), account) for account in waiting)
        for share, equals in groupby(accounts, key=lambda pair: pair[0]):
            for each in merge(*(self._among(account, among) for _, account in equals), key=head_order):
                yield share, each

    def set_head(self, task_queue: TaskQueue, head: QueueHead | None) -> None:
        """Set the first job of a task queue; None = no more jobs wait."""
        ordered = self._of_account(task_queue.account)
        ordered[:] = [waiting for waiting in ordered if waiting.task_queue.id != task_queue.id]
        if head is not None:
            insort(ordered, WaitingTaskQueue(task_queue, 1, head), key=head_order)

    def _among(self, account: Account, among: Among) -> Iterable[WaitingTaskQueue]:
        ordered = self._of_account(account)
        return ordered if among is None else [each for each in ordered if each.task_queue.id in among]

    def _of_account(self, account: Account) -> list[WaitingTaskQueue]:
        """Return the task queues of an account in order; sorted once a round, then kept in order."""
        if account not in self._ordered:
            waiting = self._waiting.of_account(account)
            reachable = (each for each in waiting if self._can_go(each.task_queue))
            self._ordered[account] = sorted(reachable, key=head_order)
        return self._ordered[account]


def head_order(waiting: WaitingTaskQueue) -> tuple[int, int, int]:
    """Sort key of task queues of equal shares: by their heads; one whose head is not known goes last."""
    if waiting.head is None:
        return (1, 0, waiting.task_queue.id)
    return (0, *waiting.head.order)


@dataclass(frozen=True, slots=True)
class JobWithAd:
    """A waiting job with its own ad."""

    job_id: int
    ad: Mapping[str, AdValue]


@dataclass(frozen=True, slots=True)
class NeedsJobAds:
    """Jobs of a task queue have to be evaluated one by one: their ads are needed."""

    task_queue: TaskQueue


class RoundFit(NamedTuple):
    """A job that may go to a slot; `job_id` None = any of its task queue, so the first."""

    job: JobSnapshot
    job_id: int | None = None


class RankedIds(NamedTuple):
    """The ids of task queues whose jobs a slot ranks equally."""

    rank: float
    among: Among


class RankedJobs:
    """The waiting jobs of one round as policies see them."""

    def __init__(self, waiting: TaskQueueIndex, views: JobViews, shares: ShareRound, most_singles: int) -> None:
        self._most_singles = most_singles
        self.waiting = waiting
        self.views = views
        self.priority = shares.user_priority
        self._jobs: dict[int, JobSnapshot] = {}
        self._singles: dict[int, list[RoundFit]] = {}

    def of(self, task_queue: TaskQueue) -> JobSnapshot:
        """Return what the jobs of a task queue have in common."""
        job = self._jobs.get(task_queue.id)
        if job is None:
            job = self._jobs[task_queue.id] = self._snapshot(self.views.view(task_queue), task_queue)
        return job

    def task_queues(self) -> list[TaskQueue]:
        """Return all task queues that are known."""
        found = map(self.waiting.task_queue, self.waiting.ids())
        return [task_queue for task_queue in found if task_queue is not None]

    def single_jobs(self, task_queue: TaskQueue) -> list[RoundFit] | None:
        """Return the jobs of a task queue that a slot looks at one by one; None = no ads have been added."""
        singles = self._singles.get(task_queue.id)
        return None if singles is None else singles[: self._most_singles]

    def add_single_jobs(self, task_queue: TaskQueue, jobs: Iterable[JobWithAd]) -> None:
        """Add all jobs of a task queue with their ads, in order."""
        self._singles[task_queue.id] = [
            RoundFit(self._snapshot(AdView(folded(job.ad), time_dependent=USER_PRIORITY), task_queue), job.job_id)
            for job in jobs
        ]

    def confirm(self, task_queue: TaskQueue, job_id: int) -> None:
        """Remove a job that is bound."""
        if task_queue.id in self._singles:
            self._singles[task_queue.id] = [fit for fit in self._singles[task_queue.id] if fit.job_id != job_id]

    def _snapshot(self, view: AdView, task_queue: TaskQueue) -> JobSnapshot:
        return JobSnapshot(view, task_queue.traits, partial(self.priority, task_queue.account))


@dataclass(frozen=True, slots=True)
class MatchLimits:
    """The bounds of a round that do not depend on policies."""

    limits: LimitRound
    shares: ShareRound
    end_margin: timedelta

    def admits(self, task_queue: TaskQueue, slot: SlotOffer) -> bool:
        """Whether sizes, times and limits let jobs of the task queue go to the slot."""
        return fits(task_queue, slot, self.end_margin) and self.limits.reached(task_queue.traits) is None


@dataclass(frozen=True, slots=True)
class SlotEvaluators:
    """Makes the policy evaluators of the slots of a round; `views` are the jobs as they see them."""

    evaluator: Callable[[SlotOffer], MatchPolicyEvaluator]
    views: JobViews


class OpenSlot:
    """A slot that may get a job in this round.

    `unfit` are the ids of task queues that are known not to fit in it; all slots of its size share it.
    """

    def __init__(
        self,
        slot: SlotOffer,
        evaluator: MatchPolicyEvaluator,
        bounds: MatchLimits,
        ranked_jobs: RankedJobs,
        unfit: set[int],
    ) -> None:
        self.slot = slot
        self.evaluator = evaluator
        self._bounds = bounds
        self._ranked_jobs = ranked_jobs
        self._unfit = unfit
        self._refused: set[int] = set()

    def fit(self, task_queue: TaskQueue) -> RoundFit | NeedsJobAds | None:
        """Return a job of the task queue that may go here; None = none may."""
        if task_queue.id in self._unfit or task_queue.id in self._refused:
            return None
        if not self._bounds.admits(task_queue, self.slot):
            self._unfit.add(task_queue.id)
            return None
        found = None if self._is_barred(task_queue) else self._accepted(task_queue)
        if found is None:
            self._refused.add(task_queue.id)
        return found

    def accepts(self, task_queue: TaskQueue, job: JobSnapshot) -> bool:
        """Whether this job may go here."""
        is_reserved = self.slot.claim is not None and self.slot.claim != task_queue.traits.account
        is_open = self._bounds.admits(task_queue, self.slot) and not self._is_barred(task_queue)
        return not is_reserved and is_open and self.evaluator.accepts(job)

    def has_room_for(self, task_queue: TaskQueue) -> bool:
        """Whether limits and quotas let one more job of a fitting task queue run."""
        return self._bounds.limits.reached(task_queue.traits) is None and not self._is_barred(task_queue)

    def weight(self, task_queue: TaskQueue) -> float:
        """Return the weighted cores that a job of the task queue is charged for here."""
        return self.evaluator.policy.weight(self.slot.allocation_for(task_queue.traits.amounts))

    def tiers(self) -> Iterator[RankedIds]:
        """Yield what may start here by preference: jobs of the claim's owner first, then by the slot's RANK."""
        by_rank = self.by_rank()
        if self.slot.claim is not None:
            known = self._ranked_jobs.task_queues()
            owned = frozenset(each.id for each in known if each.traits.account == self.slot.claim)
            yield from (RankedIds(rank, owned if among is None else owned & among) for rank, among in by_rank)
        yield from by_rank

    def by_rank(self) -> list[RankedIds]:
        """Return what may start here by the slot's RANK, the highest first."""
        if not self.evaluator.policy.rank:
            return [RankedIds(0.0, None)]
        ranks: dict[float, set[int]] = {}
        for task_queue in self._ranked_jobs.task_queues():
            ranks.setdefault(self.evaluator.rank(self._ranked_jobs.of(task_queue)), set()).add(task_queue.id)
        return [RankedIds(rank, frozenset(ranks[rank])) for rank in sorted(ranks, reverse=True)]

    def _is_barred(self, task_queue: TaskQueue) -> bool:
        """Whether a quota excludes jobs; weights are computed only where a quota can."""
        shares, account = self._bounds.shares, task_queue.account
        return shares.can_bar(account) and shares.bars(account, self.weight(task_queue))

    def _accepted(self, task_queue: TaskQueue) -> RoundFit | NeedsJobAds | None:
        if not self.evaluator.differs_by_job(self._ranked_jobs.views.view(task_queue)):
            job = self._ranked_jobs.of(task_queue)
            return RoundFit(job) if self.evaluator.accepts(job) else None
        single_jobs = self._ranked_jobs.single_jobs(task_queue)
        if single_jobs is None:
            return NeedsJobAds(task_queue)
        return next((fit for fit in single_jobs if self.evaluator.accepts(fit.job)), None)


class OpenSlots:
    """What the slots of one request have in common: the order of jobs, and what was given already."""

    def __init__(
        self,
        scope: MatchScope,
        evaluators: SlotEvaluators,
        bounds: MatchLimits,
        most_singles: int = SINGLE_JOBS_AT_ONCE,
    ) -> None:
        self.order = WaitingOrder(scope, bounds.shares)
        self.ranked_jobs = RankedJobs(scope.waiting, evaluators.views, bounds.shares, most_singles)
        self._evaluators = evaluators
        self._bounds = bounds
        self._unfit: dict[tuple[object, ...], set[int]] = {}
        self._bound_counts: Counter[int] = Counter()

    def open(self, slot: SlotOffer) -> OpenSlot:
        """Return a slot as an open slot of this round."""
        unfit = self._unfit.setdefault(size_of(slot), set())
        return OpenSlot(slot, self._evaluators.evaluator(slot), self._bounds, self.ranked_jobs, unfit)

    def confirm(self, task_queue: TaskQueue, job_id: int, weight: float, next_head: QueueHead | None) -> None:
        """Apply that a job is bound; `next_head` = the first job of its task queue now, None = no more wait."""
        self._bound_counts[task_queue.id] += 1
        self._bounds.shares.charge(task_queue.account, weight)
        self._bounds.limits.add(task_queue.traits)
        self.ranked_jobs.confirm(task_queue, job_id)
        self.order.set_head(task_queue, next_head)

    def remaining(self, task_queue: TaskQueue) -> int:
        """Return how many jobs of a task queue still wait."""
        return self.ranked_jobs.waiting.count(task_queue.id) - self._bound_counts[task_queue.id]


class RoundChoice(NamedTuple):
    """The next job to claim, for a slot: the head of a task queue, or the job with `job_id`.

    `weight` = the SlotWeight of what it gets.
    """

    slot: str
    task_queue: TaskQueue
    amounts: Amounts
    weight: float
    job_id: int | None = None


class MatchRound:
    """One request's way through its free slots."""

    def __init__(self, slots: Iterable[SlotOffer], open_slots: OpenSlots) -> None:
        self._open_slots = open_slots
        self._left = deque(map(open_slots.open, slots))
        self._count = 0
        self._repeated: RoundChoice | None = None
        self._ahead = 0

    def next_reservation(self) -> RoundChoice | NeedsJobAds | None:
        """Return what to claim next, or whose ads are needed first; None = the round is over."""
        while self._left and self._count < MAX_JOBS_PER_ROUND:
            found = self._repeated if self._repeated is not None else self._found_for(self._left[0])
            if found is not None:
                return found
            self._left.popleft()
        return None

    def confirm(self, reservation: RoundChoice, job_id: int, next_head: QueueHead | None) -> None:
        """Apply that a job is bound; `next_head` = the first job of its task queue now, None = no more wait."""
        self._count += 1
        self._open_slots.confirm(reservation.task_queue, job_id, reservation.weight, next_head)
        open_slot = self._open_slot_of(reservation)
        more = self._ahead - 1 if reservation is self._repeated else open_slot.slot.ahead
        if (
            more > 0
            and reservation.job_id is None
            and next_head is not None
            and open_slot.has_room_for(reservation.task_queue)
        ):
            self._repeated, self._ahead = reservation, more
        else:
            self._serve(open_slot, reservation)

    def _open_slot_of(self, reservation: RoundChoice) -> OpenSlot:
        return next(open_slot for open_slot in self._left if open_slot.slot.name == reservation.slot)

    def _serve(self, open_slot: OpenSlot, reservation: RoundChoice) -> None:
        """Go on with what the reservation leaves of its slot."""
        self._repeated = None
        if open_slot.slot.binds:
            self._left.clear()
            return
        index = self._left.index(open_slot)
        left = open_slot.slot.remaining_after(reservation.amounts)
        if left is None:
            del self._left[index]
        else:
            self._left[index] = self._open_slots.open(left)

    def _found_for(self, open_slot: OpenSlot) -> RoundChoice | NeedsJobAds | None:
        for tier in open_slot.tiers():
            for _, waiting in self._open_slots.order.walk(tier.among):
                fit = open_slot.fit(waiting.task_queue)
                if isinstance(fit, NeedsJobAds):
                    return fit
                if fit is not None:
                    return _reservation(self._best_ranked(fit, waiting.task_queue), waiting.task_queue, fit)
        return None

    def _best_ranked(self, fit: RoundFit, task_queue: TaskQueue) -> OpenSlot:
        """Return the slot that the job's Rank prefers, of the first and of the later ones that accept it."""
        first = self._left[0]
        if not fit.job.rank:
            return first
        later = (open_slot for open_slot in islice(self._left, 1, None) if open_slot.accepts(task_queue, fit.job))
        return max((first, *later), key=lambda open_slot: open_slot.evaluator.rank_by_job(fit.job))


def _reservation(open_slot: OpenSlot, task_queue: TaskQueue, fit: RoundFit) -> RoundChoice:
    amounts = open_slot.slot.allocation_for(task_queue.traits.amounts)
    return RoundChoice(open_slot.slot.name, task_queue, amounts, open_slot.weight(task_queue), fit.job_id)


class ReferencePreemption:
    """One request's way through its occupied slots, those with an earlier order first."""

    def __init__(
        self, slots: Iterable[SlotOffer], open_slots: OpenSlots, rules: PreemptionRules, now: datetime
    ) -> None:
        occupied = [slot for slot in slots if slot.name in rules.occupants]
        occupied.sort(key=lambda slot: slot.occupied is None or not slot.occupied.ordered)
        self._left = deque(map(open_slots.open, occupied))
        self._open_slots = open_slots
        self._rules = rules
        self._now = now
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
        self._rules.orders.add(occupant, task_queue.id, self._now)
        if job_rank > rank:
            reason = f"the slot's RANK of a waiting job of {task_queue.account} is {job_rank:g}, of this one {rank:g}"
        else:
            reason = self._priority_reason(task_queue.account, user)
        return VacateOrder(open_slot.slot.name, reason, by_rank=job_rank > rank)

    def _has_unserved_jobs(self, task_queue: TaskQueue) -> bool:
        """Whether a job of the task queue waits without a slot that is free, about to look, or vacating for it."""
        ordered = self._rules.orders.outstanding(task_queue.id, self._now)
        return self._open_slots.remaining(task_queue) > ordered and not self._rules.is_offered(task_queue.id)

    def _priority_reason(self, better: Account, worse: Account) -> str:
        priority = self._open_slots.ranked_jobs.priority
        return f"{better} has a job waiting for it, with user priority {priority(better):.2f} to {priority(worse):.2f}"


def _rank(open_slot: OpenSlot) -> float:
    occupied = open_slot.slot.occupied
    assert occupied is not None, "only occupied slots are passed here"
    return occupied.rank
