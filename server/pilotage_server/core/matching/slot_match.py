"""The search for jobs for one slot.

Rules
-----
- `SlotMatch` goes through the task queues that the slot's class may take, in fair order, and checks what bit sets
  cannot decide: exact times, access, limits, START and the jobs' expressions. A result holds for the whole
  autocluster, so that each is evaluated once.
- Jobs of a task queue that policies could tell apart are evaluated one by one, the first ones only.
- A task queue that a slot has refused is not looked at again for it: limits only tighten.
- The matcher knows the first job of each task queue, and perhaps more. Where the order or the result depends on
  unknown ones, the search stops with `MissingHeads`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.matching.fair_order import AccountRanking, Candidate, FairOrder
from pilotage_server.core.matching.job_views import JobSnapshot, JobViewCache, Rank, RankTier, SingleJob, SingleJobs
from pilotage_server.core.matching.slot_classes import SlotClass
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicies, SlotPolicy
from pilotage_server.core.queueing.bitsets import ALL_BITS, bit_set
from pilotage_server.core.queueing.slot_offers import fits
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import MAX_HEADS, WaitingJobs


class Fit(NamedTuple):
    """The job that goes to a slot: the first of the candidate's task queue, or `single` where it is evaluated alone."""

    candidate: Candidate
    single: SingleJob | None = None


HEADS_AT_ONCE = 64
"""How many jobs of a task queue are read at first."""


class MissingHeads(NamedTuple):
    """The first `most` jobs of a task queue have to be known.

    `with_ads` = they have to be added with their ads to the single jobs of the request.
    """

    task_queue_id: int
    most: int
    with_ads: bool


class Allocation(NamedTuple):
    """What a job gets of a slot, and the weighted cores that it is charged for."""

    amounts: Amounts
    weight: float


class RefusedTaskQueues(NamedTuple):
    """The task queues that a slot has refused, as a bit set; `seen` = the end of the log of changed bits then."""

    bits: int
    seen: int


MAX_RANKS = 50_000
"""The most ranks that are kept for a request."""

SlotRanks: TypeAlias = dict[str, tuple[SlotOffer, float | None]]
"""The Rank that a job gives to slots, by name; None = the slot does not take it, whatever limits and quotas say.

It holds for this offer: a slot that has changed is judged again.
"""


class RankedSlots:
    """How jobs rank the slots of one request: those of a task queue together, or one that is evaluated alone."""

    def __init__(self) -> None:
        self._by_job: dict[tuple[int, int | None], SlotRanks] = {}

    def by(self, fit: Fit) -> SlotRanks:
        """Return the known ranks, to which more may be added."""
        if sum(map(len, self._by_job.values())) > MAX_RANKS:
            self._by_job.clear()
        job_id = None if fit.single is None else fit.single.head.job_id
        return self._by_job.setdefault((fit.candidate.waiting.task_queue.id, job_id), {})


class MatchRequest(NamedTuple):
    """One request for jobs, or what is left of it.

    `queue` and `vos` are those of the pilot's credential (no VOs = all). `slots` are all free, or all occupied, in the
    order of service. `policies` holds the policy of each slot that has an ad, by slot; none of them is faulty. `limits`
    are those of the queue; reserved jobs are counted there. `single_jobs` are those that were read with their ads.
    `refused` = what the first slot has refused already. `ranked` = how jobs have ranked the slots so far.
    """

    queue: QueueId
    vos: tuple[str, ...]
    slots: tuple[SlotOffer, ...]
    limits: LimitRound
    single_jobs: SingleJobs
    now: datetime
    policies: Mapping[str, SlotPolicy] = MappingProxyType({})
    refused: RefusedTaskQueues | None = None
    ranked: RankedSlots | None = None


class MatchContext(NamedTuple):
    """What all requests to a matcher have in common."""

    view_cache: JobViewCache
    shares: FairShare
    policies: SlotPolicies
    accounts: AccountRanking
    end_margin: timedelta


class SlotMatch:
    """The search for jobs for one slot, or for several slots that are alike; `slot` is the present one."""

    __slots__ = (
        "_accepted",
        "_bars_surplus",
        "_class",
        "_context",
        "_evaluator",
        "_fair_order",
        "_goes_on",
        "_has_start",
        "_match_key",
        "_met",
        "_needed",
        "_open",
        "_policy",
        "_request",
        "_started",
        "_tier",
        "_tiers",
        "_whole",
        "limits",
        "slot",
    )

    def __init__(self, context: MatchContext, request: MatchRequest, slot: SlotOffer, slot_class: SlotClass) -> None:
        policy = request.policies.get(slot.name)
        self._context = context
        self._request = request
        self.slot = slot
        self._match_key = slot.match_key
        self._class = slot_class
        self._policy = None if policy is None else policy.resized(slot.free)
        self._evaluator: MatchPolicyEvaluator | None = None
        self._open = slot_class.possible
        self._goes_on = request.refused is not None and slot is request.slots[0]
        if request.refused is not None and self._goes_on:
            self._open &= ~self._still_refused(request.refused)
        if slot.bound_to is not None:
            self._open &= context.view_cache.waiting.traits.of_owner(slot.bound_to)
        self._bars_surplus = not context.shares.settings.rules.group_accept_surplus
        self._has_start = policy is not None and bool(policy.start)
        self._accepted = 0 if self._has_start else slot_class.certain
        self._started = 0
        self._met = 0
        self.limits = request.limits or None
        self._needed = min(1 + slot.ahead, MAX_HEADS)
        self._whole: Allocation | None = None
        self._tiers: deque[int] | None = None
        self._tier = 0
        self._fair_order: FairOrder

    @property
    def refused(self) -> RefusedTaskQueues:
        """What the slot has refused so far, for a later search with the same slot."""
        return RefusedTaskQueues(~self._open, self._context.view_cache.waiting.bits.changes.now)

    def applies_to(self, slot: SlotOffer) -> bool:
        """Whether the search can go on with a slot: the present one, or an equal one where no ad has been read.

        What an earlier search has refused may depend on the ad of its slot.
        """
        if slot is self.slot:
            return True
        return (
            not self._goes_on and self._evaluator is None and self._policy is None and slot.match_key == self._match_key
        )

    def allocation(self, waiting: WaitingJobs) -> Allocation:
        """Return what a job of the task queue gets of the slot."""
        if self.slot.partitionable:
            return self._allocation_of(waiting.amounts)
        if self._whole is None:
            self._whole = self._allocation_of(self.slot.free)
        return self._whole

    def find(self) -> Fit | MissingHeads | None:
        """Return the job that goes here; None = none does."""
        if self._tiers is None:
            self._tiers = self._tiers_of_slot()
            self._next_tier(self._tiers)
        while (candidate := self._fair_order.first(self._open & self._tier)) is not None or self._tiers:
            if candidate is None:
                self._next_tier(self._tiers)
                continue
            found = self._fit(candidate)
            if found is not None:
                return self.missing_heads(found) or found if isinstance(found, Fit) else found
            self._open &= ~(1 << candidate.waiting.bit)
        return None

    def accepts(self, fit: Fit, job: JobSnapshot) -> bool:
        """Whether the job may go here, although the slot may prefer another. Limits and quotas are not checked."""
        waiting = fit.candidate.waiting
        is_reserved = self.slot.claim is not None and self.slot.claim != waiting.task_queue.traits.account
        if is_reserved or not self._open >> waiting.bit & 1 or not self._may_hold(waiting):
            return False
        return self._slot_evaluator().accepts(job)

    def rank_by_job(self, job: JobSnapshot) -> float:
        """Return the Rank that the job gives to the slot."""
        return self._slot_evaluator().rank_by_job(job)

    def snapshot(self, fit: Fit) -> JobSnapshot:
        """Return the job as slots see it."""
        return self._snapshot(fit.candidate.waiting.task_queue, fit.single)

    def missing_heads(self, fit: Fit) -> MissingHeads | None:
        """Return the heads that have to be known to take the job with those that may be prefetched."""
        waiting = fit.candidate.waiting
        known = len(waiting.heads)
        if fit.single is not None or known >= self._needed or known >= waiting.count:
            return None
        return MissingHeads(waiting.task_queue.id, max(HEADS_AT_ONCE, self._needed) + len(waiting.taken), False)

    def has_room_for(self, candidate: Candidate) -> bool:
        """Whether limits and quotas let one more job of the task queue run."""
        waiting = candidate.waiting
        if self.limits is not None and self.limits.reached(waiting.task_queue.traits) is not None:
            return False
        if not self._bars_surplus or (bound := candidate.account.priority.group.bound) is None:
            return True
        return candidate.account.priority.group.cores + self.allocation(waiting).weight <= bound

    def _still_refused(self, refused: RefusedTaskQueues) -> int:
        """Return the task queues that were refused, without bits that may mean others by now."""
        changed = self._context.view_cache.waiting.bits.changes.since(refused.seen)
        return 0 if changed is None else refused.bits & ~bit_set(changed)

    def _next_tier(self, tiers: deque[int]) -> None:
        """Go on with the task queues that the slot ranks next."""
        self._tier = tiers.popleft() if tiers else 0
        self._fair_order = FairOrder(self._context.view_cache.waiting, self._context.accounts.in_order())

    def _fit(self, candidate: Candidate) -> Fit | MissingHeads | None:
        """Return the job of the task queue that may go here now; None = none may."""
        waiting = candidate.waiting
        if self._accepted >> waiting.bit & 1:
            return Fit(candidate) if self.has_room_for(candidate) else None
        if not (self.has_room_for(candidate) and self._may_hold(waiting)):
            return None
        if self._differs_by_job(waiting):
            return self._single_fit(candidate)
        if not (self._starts(waiting) and self._meets_requirements(waiting)):
            return None
        self._accept(waiting)
        return Fit(candidate)

    def _single_fit(self, candidate: Candidate) -> Fit | MissingHeads | None:
        """Return the first job that both policies accept, of the first ones of the task queue."""
        waiting, evaluator = candidate.waiting, self._slot_evaluator()
        for single in self._request.single_jobs.of(waiting):
            if evaluator.accepts(self._snapshot(waiting.task_queue, single)):
                return Fit(candidate, single)
        missing = self._request.single_jobs.missing(waiting)
        return MissingHeads(waiting.task_queue.id, missing, True) if missing else None

    def _accept(self, waiting: WaitingJobs) -> None:
        """Remember that jobs of the task queue go here; for the whole class, if no policy or time was checked."""
        bit, traits = 1 << waiting.bit, waiting.task_queue.traits
        self._accepted |= bit
        if not (self._has_start or self._class.uncertain & bit or traits.requirements_expression or traits.rank):
            self._class.certain |= bit

    def _may_hold(self, waiting: WaitingJobs) -> bool:
        """Whether access, size and times let jobs of the task queue go here."""
        is_uncertain = self._class.uncertain >> waiting.bit & 1
        if is_uncertain and not fits(waiting.task_queue, self.slot, self._context.end_margin):
            return False
        if self._class.admits(waiting):
            return True
        self._open &= self._class.possible
        return False

    def _differs_by_job(self, waiting: WaitingJobs) -> bool:
        """Whether jobs of the task queue have to be evaluated one by one."""
        traits = waiting.task_queue.traits
        if not (self._has_start or traits.requirements_expression or traits.rank):
            return False
        return self._slot_evaluator().differs_by_job(self._context.view_cache.views.view(waiting.task_queue))

    def _starts(self, waiting: WaitingJobs) -> bool:
        if not self._has_start or self._started >> waiting.bit & 1:
            return True
        autocluster = self._context.view_cache.by(self._slot_evaluator().start_references).of(waiting)
        is_started = self._slot_evaluator().starts(self._snapshot(autocluster.example))
        if is_started:
            self._started |= autocluster.bits
        else:
            self._open &= ~autocluster.bits
        return is_started

    def _meets_requirements(self, waiting: WaitingJobs) -> bool:
        if not waiting.task_queue.traits.requirements_expression or self._met >> waiting.bit & 1:
            return True
        job = self._snapshot(waiting.task_queue)
        equal = 0 if self._slot_evaluator().sees_all(job) else self._context.view_cache.by_requirements.of(waiting).bits
        is_met = self._slot_evaluator().meets_requirements(job)
        if is_met:
            self._met |= equal
        else:
            self._open &= ~equal
        return is_met

    def _tiers_of_slot(self) -> deque[int]:
        """Return the task queues by preference: those of the claim's owner first, then by the slot's RANK."""
        by_rank = [tier.bits for tier in self._by_rank()]
        if self.slot.claim is None:
            return deque(by_rank)
        owned = bit_set(self._context.view_cache.waiting.bits_of_owner(self.slot.claim))
        return deque([*(owned & bits for bits in by_rank), *by_rank])

    def _by_rank(self) -> list[RankTier]:
        """Return the task queues by the slot's RANK, the highest first."""
        if self._policy is None or not self._policy.rank:
            return [RankTier(0.0, ALL_BITS)]
        evaluator = self._slot_evaluator()
        autoclusters = self._context.view_cache.by(evaluator.rank_references)
        return autoclusters.in_order(evaluator.rank_key, self._class.possible, self._rank)

    def _rank(self, task_queue: TaskQueue) -> Rank:
        job = self._snapshot(task_queue)
        return Rank(self._slot_evaluator().rank(job), self._slot_evaluator().is_rank_constant(job))

    def _allocation_of(self, amounts: Amounts) -> Allocation:
        return Allocation(amounts, float(amounts.cpus) if self._policy is None else self._policy.weight(amounts))

    def _slot_evaluator(self) -> MatchPolicyEvaluator:
        """Return the evaluator of the slot; one without an ad has one too, for the jobs' expressions."""
        if self._evaluator is None:
            policies = self._context.policies
            policy = self._policy or policies.policy(self.slot, self._request.queue)
            assert policy is not None, "a slot without an ad has all its parts"
            self._evaluator = policies.evaluator(policy, self._time())
        return self._evaluator

    def _time(self) -> EvaluationTime:
        return EvaluationTime(self._request.now)

    def _snapshot(self, task_queue: TaskQueue, single: SingleJob | None = None) -> JobSnapshot:
        view = self._context.view_cache.views.view(task_queue) if single is None else single.view
        priority = partial(self._context.shares.user_priority, task_queue.account, self._request.now)
        return JobSnapshot(view, task_queue.traits, priority)
