"""The matcher: chooses waiting jobs for the free slots of many requests, in memory.

Rules
-----
- A chosen job is reserved and its account charged at once, so that the next request sees it.
- Each reservation ends once: `commit` when the transaction that claimed jobs for it has committed, `exhaust` when the
  database had none, `unreserve` when the transaction failed.
- The matcher knows the first job of each task queue, and perhaps more. It asks for heads (`NeedsHeads`) where the
  order depends on them, with the ads of the jobs where policies could tell these apart.
- Of the slots that are left, a job with a Rank takes the one that it ranks highest.
- `SlotMatch` goes through the task queues that the slot's class may take, in fair order, and checks what bit sets
  cannot decide: exact times, access, limits, START and the jobs' expressions. A result holds for the whole
  autocluster, so that each is evaluated once.
- At a pilot that isolates by owner and holds no job, the first job ends the search: it decides the owner, and the pilot
  asks again for its other slots.
- The caller holds the lock of the server state, and never during a database access.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.matching.fair_order import AccountRanking, Candidate, FairOrder
from pilotage_server.core.matching.job_views import JobSnapshot, JobViewCache, Rank, SingleJob, SingleJobs
from pilotage_server.core.matching.slot_classes import SlotClass, SlotClasses
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicies, SlotPolicy
from pilotage_server.core.queueing.bitsets import ALL_BITS, bit_set
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.slot_offers import fits
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import MAX_HEADS, QueueHead, WaitingJobs


class Fit(NamedTuple):
    """The job that goes to a slot: the first of the candidate's task queue, or `single` where it is evaluated alone."""

    candidate: Candidate
    single: SingleJob | None = None


class UnreadJobs(NamedTuple):
    """The first jobs of a task queue have to be evaluated one by one, and their ads are not known."""

    waiting: WaitingJobs


class Allocation(NamedTuple):
    """What a job gets of a slot, and the weighted cores that it is charged for."""

    amounts: Amounts
    weight: float


class MatchRequest(NamedTuple):
    """One request for jobs, or what is left of it.

    `queue` and `vos` are those of the pilot's credential (no VOs = all). `slots` are free, in the order of service.
    `policies` holds the policy of each slot that has an ad, by slot; none of them is faulty. `limits` are those of the
    queue; reserved jobs are counted there. `single_jobs` are those that were read with their ads.
    """

    queue: QueueId
    vos: tuple[str, ...]
    slots: tuple[SlotOffer, ...]
    limits: LimitRound
    single_jobs: SingleJobs
    now: datetime
    policies: Mapping[str, SlotPolicy] = MappingProxyType({})


class MatchContext(NamedTuple):
    """What all requests to a matcher have in common."""

    view_cache: JobViewCache
    shares: FairShare
    policies: SlotPolicies
    accounts: AccountRanking
    end_margin: timedelta


class SlotMatch:
    """The search for jobs for one slot, or for several slots that cannot be told apart."""

    __slots__ = (
        "_accepted",
        "_bars_surplus",
        "_class",
        "_context",
        "_evaluator",
        "_fair_order",
        "_is_plain",
        "_match_key",
        "_met",
        "_needed",
        "_open",
        "_policy",
        "_request",
        "_slot",
        "_started",
        "_tier",
        "_tiers",
        "_whole",
        "limits",
    )

    def __init__(self, context: MatchContext, request: MatchRequest, slot: SlotOffer, slot_class: SlotClass) -> None:
        policy = request.policies.get(slot.name)
        self._context = context
        self._request = request
        self._slot = slot
        self._match_key = slot.match_key
        self._class = slot_class
        self._policy = None if policy is None else policy.resized(slot.free)
        self._evaluator: MatchPolicyEvaluator | None = None
        self._open = slot_class.possible
        if slot.bound_to is not None:
            self._open &= context.view_cache.waiting.traits.of_owner(slot.bound_to)
        self._bars_surplus = not context.shares.settings.rules.group_accept_surplus
        self._is_plain = policy is None or not policy.start
        self._accepted = slot_class.certain if self._is_plain else 0
        self._started = 0
        self._met = 0
        self.limits = request.limits or None
        self._needed = min(1 + slot.ahead, MAX_HEADS)
        self._whole: Allocation | None = None
        self._tiers = self._tiers_of_slot()
        self._next_tier()

    def applies_to(self, slot: SlotOffer) -> bool:
        """Whether another slot has the same result: no ad was read for either, and their keys are equal."""
        return self._evaluator is None and self._policy is None and slot.match_key == self._match_key

    def allocation(self, waiting: WaitingJobs) -> Allocation:
        """Return what a job of the task queue gets of the slot."""
        if self._slot.partitionable:
            return self._allocation_of(waiting.amounts)
        if self._whole is None:
            self._whole = self._allocation_of(self._slot.free)
        return self._whole

    def find(self) -> Fit | UnreadJobs | None:
        """Return the job that goes here; None = none does."""
        while (candidate := self._fair_order.first(self._open & self._tier)) is not None or self._tiers:
            if candidate is None:
                self._next_tier()
                continue
            found = self._fit(candidate)
            if found is not None:
                return found
            self._open &= ~(1 << candidate.waiting.bit)
        return None

    def accepts(self, fit: Fit) -> bool:
        """Whether the job may go here, although the slot may prefer another."""
        waiting = fit.candidate.waiting
        is_reserved = self._slot.claim is not None and self._slot.claim != waiting.task_queue.traits.account
        if is_reserved or not self._open >> waiting.bit & 1 or not self._is_open(fit.candidate):
            return False
        return self._slot_evaluator().accepts(self._snapshot(waiting.task_queue, fit.single))

    def rank_by_job(self, fit: Fit) -> float:
        """Return the Rank that the job gives to the slot."""
        return self._slot_evaluator().rank_by_job(self._snapshot(fit.candidate.waiting.task_queue, fit.single))

    def heads_needed(self, fit: Fit) -> int:
        """Return how many heads of the task queue have to be known to take the job; 0 = enough are."""
        known, count = len(fit.candidate.waiting.heads), fit.candidate.waiting.count
        return 0 if fit.single is not None or known >= self._needed or known >= count else self._needed

    def has_room_for(self, candidate: Candidate) -> bool:
        """Whether limits and quotas let one more job of the task queue run."""
        waiting = candidate.waiting
        if self.limits is not None and self.limits.reached(waiting.task_queue.traits) is not None:
            return False
        if not self._bars_surplus or (bound := candidate.account.priority.group.bound) is None:
            return True
        return candidate.account.priority.group.cores + self.allocation(waiting).weight <= bound

    def _next_tier(self) -> None:
        """Go on with the task queues that the slot ranks next."""
        self._tier = self._tiers.popleft() if self._tiers else 0
        self._fair_order = FairOrder(self._context.view_cache.waiting, self._context.accounts.in_order())

    def _fit(self, candidate: Candidate) -> Fit | UnreadJobs | None:
        """Return the job of the task queue that may go here now; None = none may."""
        waiting = candidate.waiting
        if self._accepted >> waiting.bit & 1:
            return Fit(candidate) if self.has_room_for(candidate) else None
        if not self._is_open(candidate):
            return None
        if self._differs_by_job(waiting):
            return self._single_fit(candidate)
        if not (self._starts(waiting) and self._meets_requirements(waiting)):
            return None
        self._accept(waiting)
        return Fit(candidate)

    def _single_fit(self, candidate: Candidate) -> Fit | UnreadJobs | None:
        """Return the first job of the task queue that both policies accept, of those that were read."""
        task_queue, evaluator = candidate.waiting.task_queue, self._slot_evaluator()
        singles = self._request.single_jobs.of(candidate.waiting)
        if singles is None:
            return UnreadJobs(candidate.waiting)
        accepted = (single for single in singles if evaluator.accepts(self._snapshot(task_queue, single)))
        single = next(accepted, None)
        return None if single is None else Fit(candidate, single)

    def _accept(self, waiting: WaitingJobs) -> None:
        """Remember that jobs of the task queue go here; for the whole class, if no policy or time was checked."""
        bit, traits = 1 << waiting.bit, waiting.task_queue.traits
        self._accepted |= bit
        if self._is_plain and not (self._class.uncertain & bit or traits.requirements_expression or traits.rank):
            self._class.certain |= bit

    def _is_open(self, candidate: Candidate) -> bool:
        waiting = candidate.waiting
        is_uncertain = self._class.uncertain >> waiting.bit & 1
        if is_uncertain and not fits(waiting.task_queue, self._slot, self._context.end_margin):
            return False
        if not self.has_room_for(candidate):
            return False
        if self._class.admits(waiting):
            return True
        self._open &= self._class.possible
        return False

    def _differs_by_job(self, waiting: WaitingJobs) -> bool:
        """Whether jobs of the task queue have to be evaluated one by one."""
        traits = waiting.task_queue.traits
        has_expression = bool(traits.requirements_expression or traits.rank)
        is_evaluated = has_expression or (self._policy is not None and bool(self._policy.start))
        view = self._context.view_cache.views.view(waiting.task_queue)
        return is_evaluated and self._slot_evaluator().differs_by_job(view)

    def _starts(self, waiting: WaitingJobs) -> bool:
        if self._policy is None or not self._policy.start or self._started >> waiting.bit & 1:
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
        by_rank = self._by_rank() if self._policy is not None and self._policy.rank else [ALL_BITS]
        if self._slot.claim is None:
            return deque(by_rank)
        owned = bit_set(self._context.view_cache.waiting.bits_of_owner(self._slot.claim))
        return deque([*(owned & bits for bits in by_rank), *by_rank])

    def _by_rank(self) -> list[int]:
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
            policy = self._policy or policies.policy(self._slot, self._request.queue)
            assert policy is not None, "a slot without an ad has all its parts"
            self._evaluator = policies.evaluator(policy, EvaluationTime(self._request.now))
        return self._evaluator

    def _snapshot(self, task_queue: TaskQueue, single: SingleJob | None = None) -> JobSnapshot:
        view = self._context.view_cache.views.view(task_queue) if single is None else single.view
        priority = partial(self._context.shares.user_priority, task_queue.account, self._request.now)
        return JobSnapshot(view, task_queue.traits, priority)


MAX_JOBS_PER_ROUND = 1000
"""The most jobs that a request gets; a pilot asks again for more."""

HEADS_AT_ONCE = 64
"""How many jobs of a task queue are read at first."""

SINGLE_JOBS_AT_ONCE = 20
"""How many jobs of a task queue are evaluated one by one for a slot, where that is needed."""


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


class NeedsHeads(NamedTuple):
    """The first `most` jobs of a task queue have to be known to go on with `request`.

    Refresh its heads (`Matcher.refresh_heads`). `with_ads` = also add the jobs with their ads to the single jobs of the
    request: policies could tell them apart.
    """

    task_queue_id: int
    most: int
    with_ads: bool
    request: MatchRequest


class Chosen(NamedTuple):
    """What was reserved, in the order of the slots; `rest` None = all slots were served as far as jobs fit them."""

    reservations: tuple[Reservation, ...]
    rest: NeedsHeads | None = None


class Matcher:
    """The matcher over the task queues, shares and policies of one server.

    `committed_total` and `exhausted_total` count how reservations have ended since the matcher was made.
    """

    def __init__(
        self, waiting: TaskQueueIndex, shares: FairShare, policies: SlotPolicies, end_margin: timedelta
    ) -> None:
        self._classes = SlotClasses(waiting, end_margin)
        self._waiting = waiting
        self._shares = shares
        self._accounts = AccountRanking(waiting)
        self._context = MatchContext(
            JobViewCache(waiting, policies.views), shares, policies, self._accounts, end_margin
        )
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

    def refresh_heads(self, task_queue_id: int, heads: Sequence[QueueHead], limit: int) -> None:
        """Set the first waiting jobs of a task queue, in order, as the database has them.

        Fewer than `limit` = there are no more. Reserved jobs may be among them.
        """
        self._waiting.refresh_heads(task_queue_id, heads, is_all=len(heads) < limit)

    def confirm(self, reservations: Sequence[Reservation], job_ids: Sequence[int]) -> None:
        """Apply the jobs that the database has given for reservations of one task queue.

        They may be other jobs than the reserved heads, if another server was quicker. If the transaction fails, call
        `roll_back` with them before `unreserve`.
        """
        for task_queue_id, heads in _by_task_queue(reservations).items():
            self._waiting.confirm(task_queue_id, heads, job_ids)

    def commit(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Apply the commit of these jobs of a task queue."""
        self.committed_total += len(job_ids)
        self._waiting.commit(task_queue_id, job_ids)

    def roll_back(self, task_queue_id: int, job_ids: Sequence[int]) -> None:
        """Apply that the transaction that claimed these jobs has failed."""
        self._waiting.commit(task_queue_id, job_ids)

    def exhaust(self, reservations: Sequence[Reservation], now: datetime) -> None:
        """End reservations for which the database had no job: the task queue is empty."""
        self.exhausted_total += len(reservations)
        self._uncharge(reservations, now)
        for task_queue_id, heads in _by_task_queue(reservations).items():
            self._waiting.exhaust(task_queue_id, heads)

    def unreserve(self, reservations: Sequence[Reservation], now: datetime) -> None:
        """Return reserved jobs to their task queues, and discharge the accounts: the transaction failed."""
        self._uncharge(reservations, now)
        for task_queue_id, heads in _by_task_queue(reservations).items():
            self._waiting.unreserve(task_queue_id, heads)

    def check(self) -> None:
        """Assert the invariants."""
        self._waiting.check()
        self._accounts.check()

    def _choose(self, request: MatchRequest, access: QueueAccess, reservations: list[Reservation]) -> NeedsHeads | None:
        """Serve one slot after the other and return what is left; `reservations` gets the result."""
        left = deque(request.slots)
        first: SlotMatch | None = None
        while left and len(reservations) < MAX_JOBS_PER_ROUND:
            if first is None or not first.applies_to(left[0]):
                first = self._slot_match(left[0], request, access)
            found = first.find()
            if found is None:
                left.popleft()
                continue
            if isinstance(found, UnreadJobs):
                most = SINGLE_JOBS_AT_ONCE + len(found.waiting.claimed)
                return NeedsHeads(found.waiting.task_queue.id, most, True, request._replace(slots=tuple(left)))
            waiting = found.candidate.waiting
            index, slot_match = 0, first
            if waiting.task_queue.traits.rank and len(left) > 1:
                later = [self._slot_match(slot, request, access) for slot in islice(left, 1, None)]
                index, slot_match = _best_ranked(found, [first, *later])
            if needed := slot_match.heads_needed(found):
                most = max(HEADS_AT_ONCE, needed) + len(waiting.claimed)
                return NeedsHeads(waiting.task_queue.id, most, False, request._replace(slots=tuple(left)))
            slot, allocation = left[index], slot_match.allocation(waiting)
            self._reserve(slot, found, slot_match, reservations)
            if slot.binds:
                return None
            remainder = slot.remaining_after(allocation.amounts) if slot.partitionable else None
            if remainder is None:
                del left[index]
            else:
                left[index] = remainder
        return None

    def _slot_match(self, slot: SlotOffer, request: MatchRequest, access: QueueAccess) -> SlotMatch:
        slot_class = self._classes.of(slot, request.queue, request.vos, access)
        return SlotMatch(self._context, request, slot, slot_class)

    def _reserve(self, slot: SlotOffer, fit: Fit, slot_match: SlotMatch, reservations: list[Reservation]) -> None:
        """Reserve the job for the slot, and its prefetched jobs from the same task queue; a single job has none."""
        candidate, single = fit
        waiting, task_queue = candidate.waiting, candidate.waiting.task_queue
        (amounts, weight), limits = slot_match.allocation(waiting), slot_match.limits
        ahead = min(slot.ahead, MAX_JOBS_PER_ROUND - len(reservations) - 1) if single is None else 0
        job_id = None if single is None else single.head.job_id
        while True:
            head = self._waiting.reserve(waiting, None if single is None else single.head)
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

    def _uncharge(self, reservations: Iterable[Reservation], now: datetime) -> None:
        for reservation in reservations:
            self._shares.end_runs(reservation.task_queue.account, reservation.weight, now)


def _best_ranked(fit: Fit, matches: Sequence[SlotMatch]) -> tuple[int, SlotMatch]:
    """Return the slot that the job's Rank prefers, of the first and of the later ones that accept it, and its index."""
    accepting = [pair for pair in enumerate(matches) if pair[0] == 0 or pair[1].accepts(fit)]
    return max(accepting, key=lambda pair: pair[1].rank_by_job(fit))


def _by_task_queue(reservations: Iterable[Reservation]) -> dict[int, list[QueueHead]]:
    heads: dict[int, list[QueueHead]] = defaultdict(list)
    for reservation in reservations:
        heads[reservation.task_queue.id].append(reservation.head)
    return heads
