"""The matcher: chooses waiting jobs for the free slots of many requests, in memory.

Rules
-----
- Its result equals that of `general_matcher.MatchRound` for the same state.
- A chosen job is reserved and its account charged at once, so that the next request sees it.
- Each reservation ends once: `commit` when the transaction that claimed jobs for it has committed, `exhaust` when the
  database had none, `unreserve` when the transaction failed.
- The matcher knows the first job of each task queue, and perhaps more. It asks for heads (`NeedsHeads`) where the
  order depends on them. It declines cases that it does not support (`NeedsGeneralMatcher`).
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
from types import MappingProxyType
from typing import NamedTuple, assert_never

from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.matching.fair_order import AccountRanking, Candidate, FairOrder
from pilotage_server.core.matching.general_matcher import MAX_JOBS_PER_ROUND, Reservation
from pilotage_server.core.matching.job_views import JobSnapshot, JobViewCache, Rank
from pilotage_server.core.matching.slot_classes import SlotClass, SlotClasses
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicies, SlotPolicy
from pilotage_server.core.queueing.bitsets import ALL_BITS, bit_set
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.slot_offers import fits
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import MAX_HEADS, QueueHead, WaitingJobs


class MissingHeads(NamedTuple):
    """The decision needs the first `needed` jobs of a task queue, and they are not known."""

    waiting: WaitingJobs
    needed: int


class Unsupported(NamedTuple):
    """The matcher does not support this case, and why."""

    reason: str


class Allocation(NamedTuple):
    """What a job gets of a slot, and the weighted cores that it is charged for."""

    amounts: Amounts
    weight: float


class MatchRequest(NamedTuple):
    """One request for jobs, or what is left of it.

    `queue` and `vos` are those of the pilot's credential (no VOs = all). `slots` are free, in the order of service.
    `policies` holds the policy of each slot that has an ad, by slot; none of them is faulty. `limits` are those of the
    queue; reserved jobs are counted there.
    """

    queue: QueueId
    vos: tuple[str, ...]
    slots: tuple[SlotOffer, ...]
    limits: LimitRound
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

    def find(self) -> Candidate | MissingHeads | Unsupported | None:
        """Return the task queue whose first job goes here; None = none does."""
        while (candidate := self._fair_order.first(self._open & self._tier)) is not None or self._tiers:
            if candidate is None:
                self._next_tier()
                continue
            waiting = candidate.waiting
            verdict = self._may_take(candidate)
            if verdict is True:
                known = len(waiting.heads)
                is_enough = known >= self._needed or known >= waiting.count
                return candidate if is_enough else MissingHeads(waiting, self._needed)
            if isinstance(verdict, Unsupported):
                return verdict
            self._open &= ~(1 << waiting.bit)
        return None

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

    def _may_take(self, candidate: Candidate) -> bool | Unsupported:
        """Whether jobs of the task queue may go here now."""
        waiting = candidate.waiting
        if self._accepted >> waiting.bit & 1:
            return self.has_room_for(candidate)
        if not self._is_open(candidate):
            return False
        verdict = self._unsupported(waiting) or (self._starts(waiting) and self._meets_requirements(waiting))
        if verdict is True:
            self._accept(waiting)
        return verdict

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

    def _unsupported(self, waiting: WaitingJobs) -> Unsupported | None:
        traits = waiting.task_queue.traits
        has_expression = bool(traits.requirements_expression or traits.rank)
        is_evaluated = has_expression or (self._policy is not None and bool(self._policy.start))
        if is_evaluated and self._slot_evaluator().differs_by_job(
            self._context.view_cache.views.view(waiting.task_queue)
        ):
            return Unsupported(f"jobs of task queue {waiting.task_queue.id} have to be evaluated one by one")
        return None

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

    def _snapshot(self, task_queue: TaskQueue) -> JobSnapshot:
        view = self._context.view_cache.views.view(task_queue)
        priority = partial(self._context.shares.user_priority, task_queue.account, self._request.now)
        return JobSnapshot(view, task_queue.traits, priority)


HEADS_AT_ONCE = 64
"""How many jobs of a task queue are read at first."""


class NeedsHeads(NamedTuple):
    """The order depends on unknown heads: refresh them (`Matcher.refresh_heads`), then go on with `request`.

    `wanted` is how many to read, by task queue.
    """

    wanted: Mapping[int, int]
    request: MatchRequest


class NeedsGeneralMatcher(NamedTuple):
    """The general matcher has to decide `request`; `reason` is for people."""

    reason: str
    request: MatchRequest


class Chosen(NamedTuple):
    """What was reserved, in the order of the slots; `rest` None = all slots were served as far as jobs fit them."""

    reservations: tuple[Reservation, ...]
    rest: NeedsHeads | NeedsGeneralMatcher | None = None


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

    def _choose(
        self, request: MatchRequest, access: QueueAccess, reservations: list[Reservation]
    ) -> NeedsHeads | NeedsGeneralMatcher | None:
        """Serve one slot after the other and return what is left; `reservations` gets the result."""
        left = deque(request.slots)
        slot_match: SlotMatch | None = None
        while left and len(reservations) < MAX_JOBS_PER_ROUND:
            slot = left[0]
            if slot_match is None or not slot_match.applies_to(slot):
                slot_class = self._classes.of(slot, request.queue, request.vos, access)
                slot_match = SlotMatch(self._context, request, slot, slot_class)
            found = slot_match.find()
            if found is None:
                left.popleft()
            elif not isinstance(found, Candidate):
                return _rest(found, request._replace(slots=tuple(left)))
            elif found.waiting.task_queue.traits.rank and len(left) > 1:
                reason = f"jobs of task queue {found.waiting.task_queue.id} rank slots"
                return NeedsGeneralMatcher(reason, request._replace(slots=tuple(left)))
            else:
                allocation = slot_match.allocation(found.waiting)
                self._reserve(slot, found, slot_match, reservations)
                if slot.binds:
                    return None
                left.popleft()
                remainder = slot.remaining_after(allocation.amounts) if slot.partitionable else None
                if remainder is not None:
                    left.appendleft(remainder)
        return None

    def _reserve(
        self, slot: SlotOffer, candidate: Candidate, slot_match: SlotMatch, reservations: list[Reservation]
    ) -> None:
        """Reserve the job for the slot, and its prefetched jobs from the same task queue."""
        waiting, task_queue = candidate.waiting, candidate.waiting.task_queue
        allocation, limits = slot_match.allocation(waiting), slot_match.limits
        ahead = min(slot.ahead, MAX_JOBS_PER_ROUND - len(reservations) - 1)
        while True:
            head = self._waiting.reserve(waiting)
            self._accounts.charge(candidate.account, allocation.weight)
            reservations.append(Reservation(slot.name, task_queue, allocation.amounts, allocation.weight, None, head))
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


def _rest(found: MissingHeads | Unsupported, request: MatchRequest) -> NeedsHeads | NeedsGeneralMatcher:
    match found:
        case MissingHeads(waiting, needed):
            most = max(HEADS_AT_ONCE, needed) + len(waiting.claimed)
            return NeedsHeads({waiting.task_queue.id: most}, request)
        case Unsupported(reason):
            return NeedsGeneralMatcher(reason, request)
        case _:
            assert_never(found)


def _by_task_queue(reservations: Iterable[Reservation]) -> dict[int, list[QueueHead]]:
    heads: dict[int, list[QueueHead]] = defaultdict(list)
    for reservation in reservations:
        if reservation.head is not None:
            heads[reservation.task_queue.id].append(reservation.head)
    return heads
