"""Slots of one round and the jobs that may go to them: all checks of a match, the cheap ones first.

Rules
-----
Sizes and times, limits and quotas, then the policies of both sides. What does not fit now does not fit later in the
round, as long as the slot is the same: limits only tighten, and jobs only leave. Jobs of a task queue that policies
could tell apart are asked one by one, those first that go first; who runs the round brings their ads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from pilotage.classads import AdValue
from pilotage_server.core.ad_views import AdView
from pilotage_server.core.job_views import USER_PRIORITY, JobNow, JobViews, folded
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.slot_policies import SlotJudge
from pilotage_server.core.slots import SlotOffer, fits, size_of
from pilotage_server.core.standings import ShareRound
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting import Head, WaitingIndex
from pilotage_server.core.waiting_order import Among, Candidates, WaitingOrder

FEW = 16
"""Kinds of jobs, as START sees them, up to which all are asked before anybody is looked at."""


@dataclass(frozen=True, slots=True)
class SingleJob:
    """A waiting job with an ad of its own."""

    job_id: int
    ad: Mapping[str, AdValue]


@dataclass(frozen=True, slots=True)
class HeadsWanted:
    """The first jobs of a task queue have to be asked one by one: bring their ads."""

    task_queue: TaskQueue


class Fit(NamedTuple):
    """A job that may go to a slot; `job_id` None = any of its task queue, so the first."""

    job: JobNow
    job_id: int | None = None


class Tier(NamedTuple):
    """Task queues whose jobs a slot likes equally."""

    rank: float
    among: Among


class Applicants:
    """The waiting jobs of one round as policies see them."""

    def __init__(self, waiting: WaitingIndex, views: JobViews, shares: ShareRound) -> None:
        self.waiting = waiting
        self.views = views
        self.priority = shares.user_priority
        self._jobs: dict[int, JobNow] = {}
        self._singles: dict[int, list[Fit]] = {}

    def of(self, task_queue: TaskQueue) -> JobNow:
        """Return what the jobs of a task queue have in common."""
        job = self._jobs.get(task_queue.id)
        if job is None:
            job = self._jobs[task_queue.id] = self._now(self.views.view(task_queue), task_queue)
        return job

    def singles(self, task_queue: TaskQueue) -> list[Fit] | None:
        """Return the first jobs of a task queue, each by itself; None = they have not been brought."""
        return self._singles.get(task_queue.id)

    def bring(self, task_queue: TaskQueue, jobs: Iterable[SingleJob]) -> None:
        """Take in the first jobs of a task queue; none = there are no more."""
        self._singles[task_queue.id] = [
            Fit(self._now(AdView(folded(job.ad), passing=USER_PRIORITY), task_queue), job.job_id) for job in jobs
        ]

    def taken(self, task_queue: TaskQueue, job_id: int) -> None:
        """Take note that a job is bound; when none is left of those that were brought, the next have to be."""
        self.lost(task_queue, job_id)
        if not self._singles[task_queue.id]:
            del self._singles[task_queue.id]

    def lost(self, task_queue: TaskQueue, job_id: int) -> None:
        """Take note that others were quicker to take a job."""
        self._singles[task_queue.id] = [fit for fit in self._singles[task_queue.id] if fit.job_id != job_id]

    def _now(self, view: AdView, task_queue: TaskQueue) -> JobNow:
        return JobNow(view, task_queue.traits, partial(self.priority, task_queue.account))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds a round whatever policies say."""

    limits: LimitRound
    shares: ShareRound
    end_margin: timedelta

    def admit(self, task_queue: TaskQueue, slot: SlotOffer) -> bool:
        """Whether jobs may go to a slot as far as sizes, times and limits are concerned."""
        return fits(task_queue, slot, self.end_margin) and self.limits.reached(task_queue.traits) is None


@dataclass(frozen=True, slots=True)
class Policies:
    """How the slots of a round judge, and how they see jobs."""

    judge: Callable[[SlotOffer], SlotJudge]
    views: JobViews


class Opening:
    """A slot that may get a job in this round.

    `unfit` are the ids of task queues that do not fit in it, as far as they have been asked: all slots of its size
    add to them.
    """

    def __init__(
        self, slot: SlotOffer, judge: SlotJudge, bounds: Bounds, applicants: Applicants, unfit: set[int]
    ) -> None:
        self.slot = slot
        self.judge = judge
        self._bounds = bounds
        self._applicants = applicants
        self._unfit = unfit
        self._refused: set[int] = set()

    def fit(self, task_queue: TaskQueue) -> Fit | HeadsWanted | None:
        """Return a job of the task queue that may go here; None = none may."""
        if task_queue.id in self._unfit or task_queue.id in self._refused:
            return None
        if not self._bounds.admit(task_queue, self.slot):
            self._unfit.add(task_queue.id)
            return None
        found = None if self._is_barred(task_queue) else self._taken(task_queue)
        if found is None:
            self._refused.add(task_queue.id)
        return found

    def takes(self, task_queue: TaskQueue, job: JobNow) -> bool:
        """Whether this very job may go here."""
        is_reserved = self.slot.claim is not None and self.slot.claim != task_queue.traits.account
        is_open = self._bounds.admit(task_queue, self.slot) and not self._is_barred(task_queue)
        return not is_reserved and is_open and self.judge.takes(job)

    def is_open_to(self, task_queue: TaskQueue) -> bool:
        """Whether one more job of a task queue that fits may run, as far as limits and quotas are concerned."""
        return self._bounds.limits.reached(task_queue.traits) is None and not self._is_barred(task_queue)

    def weight(self, task_queue: TaskQueue) -> float:
        """Return the weighted cores that a job of the task queue is charged for here."""
        return self.judge.policy.weight(self.slot.given_to(task_queue.traits.amounts))

    def tiers(self) -> Iterator[Tier]:
        """Yield what may start here as the slot likes it: jobs of who holds it first, and among them by its RANK."""
        by_rank = self.by_rank()
        if self.slot.claim is not None:
            own = self._applicants.waiting.of_owner(self.slot.claim)
            yield from (Tier(rank, own if among is None else own & among) for rank, among in by_rank)
        yield from by_rank

    def by_rank(self) -> list[Tier]:
        """Return what may start here by the slot's RANK, what it likes best first."""
        may_start = self._may_start()
        return [tier if may_start is None else _narrowed(tier, may_start) for tier in self._by_rank()]

    def _by_rank(self) -> list[Tier]:
        if not self.judge.policy.rank:
            return [Tier(0.0, None)]
        sorting = self._applicants.views.sorted_by(self.judge.ranks_by, self._applicants.waiting)
        ranks: dict[float, frozenset[int]] = {}
        for ids in (*sorting.alike, *(frozenset((odd,)) for odd in sorting.odd)):
            rank = self.judge.rank(self._any_of(ids))
            ranks[rank] = ranks.get(rank, frozenset()) | ids
        if len(ranks) == 1:
            return [Tier(rank, None) for rank in ranks]
        return [Tier(rank, ranks[rank]) for rank in sorted(ranks, reverse=True)]

    def _may_start(self) -> Among:
        """Return what is not kept out by START, where that is known at once for all; None = any may start."""
        if not self.judge.policy.start:
            return None
        sorting = self._applicants.views.sorted_by(self.judge.starts_by, self._applicants.waiting)
        if len(sorting.alike) > FEW:
            return None
        refused = [ids for ids in sorting.alike if not self.judge.starts(self._any_of(ids))]
        return sorting.odd.union(*(ids for ids in sorting.alike if ids not in refused)) if refused else None

    def _is_barred(self, task_queue: TaskQueue) -> bool:
        """Whether a quota keeps jobs out; they are weighed only where there is one."""
        shares, account = self._bounds.shares, task_queue.account
        return shares.can_bar(account) and shares.bars(account, self.weight(task_queue))

    def _any_of(self, ids: frozenset[int]) -> JobNow:
        task_queue = self._applicants.waiting.task_queue(next(iter(ids)))
        assert task_queue is not None, "what was just sorted is known"
        return self._applicants.of(task_queue)

    def _taken(self, task_queue: TaskQueue) -> Fit | HeadsWanted | None:
        if not self.judge.asks_singly(self._applicants.views.view(task_queue)):
            job = self._applicants.of(task_queue)
            return Fit(job) if self.judge.takes(job) else None
        singles = self._applicants.singles(task_queue)
        if singles is None:
            return HeadsWanted(task_queue)
        return next((fit for fit in singles if self.judge.takes(fit.job)), None)


def _narrowed(tier: Tier, among: frozenset[int]) -> Tier:
    return Tier(tier.rank, among if tier.among is None else tier.among & among)


class Openings:
    """What the slots of one request have in common: who waits in which order, and what was given already."""

    def __init__(self, candidates: Candidates, policies: Policies, bounds: Bounds) -> None:
        self.order = WaitingOrder(candidates, bounds.shares)
        self.applicants = Applicants(candidates.waiting, policies.views, bounds.shares)
        self._policies = policies
        self._bounds = bounds
        self._unfit: dict[tuple[object, ...], set[int]] = {}
        self._given: Counter[int] = Counter()

    def open(self, slot: SlotOffer) -> Opening:
        """Return the opening that a slot is."""
        unfit = self._unfit.setdefault(size_of(slot), set())
        return Opening(slot, self._policies.judge(slot), self._bounds, self.applicants, unfit)

    def given(self, task_queue: TaskQueue, job_id: int | None, weight: float, next_head: Head | None) -> None:
        """Take note that a job is bound; `next_head` = who is first in its task queue now, None = nobody."""
        self._given[task_queue.id] += 1
        self._bounds.shares.charge(task_queue.account, weight)
        self._bounds.limits.given(task_queue.traits)
        if job_id is not None:
            self.applicants.taken(task_queue, job_id)
        self.order.head_is(task_queue, next_head)

    def left(self, task_queue: TaskQueue) -> int:
        """Return how many jobs of a task queue still wait."""
        return self.applicants.waiting.count(task_queue.id) - self._given[task_queue.id]
