"""Waiting jobs as slots see them: the ads of task queues, and which of them an expression cannot tell apart.

Rules
-----
- The ad of a task queue is made from its traits and cached. A task queue whose jobs differ in an attribute that an
  expression reads is evaluated job by job. User priorities depend on the time.
- An autocluster is the set of task queues with an equal view: what holds for one of them holds for all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pilotage.classads.evaluation import CURRENT_TIME
from pilotage.classads.library import AdValue
from pilotage.text import fold
from pilotage_server.core.classads.views import MAX_PROJECTIONS, AdSnapshot, AdView, Names
from pilotage_server.core.jobs.attributes import expression_references
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.job_ads import traits_ad
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits, individual_names
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingJobs

USER_PRIORITY = frozenset({"submittorprio", "submitteruserprio"})
"""Folded names of the user's priority in a job's ad: HTCondor's negotiator has both spellings."""

MAX_VIEWS = 20_000

_OF_THE_SLOT = frozenset({fold(CURRENT_TIME)})
"""Attributes that a job leaves to the slot, wherever they are looked up."""


class JobView(AdView):
    """The ad that the jobs of a task queue have in common."""

    def __init__(self, traits: Traits) -> None:
        super().__init__(folded(traits_ad(traits)), time_dependent=USER_PRIORITY)
        self._traits = traits
        self._differs: dict[Names, bool] = {}
        own = expression_references(traits.requirements_expression, traits.rank)
        self.expressions_differ_by_job = self.differs_by_job(None if own.is_dynamic else own.in_my)

    def differs_by_job(self, names: Names) -> bool:
        """Whether the jobs may differ in any of these attributes; None = in any at all."""
        found = self._differs.get(names)
        if found is None:
            escaped = self._traits.escaped if names is None else individual_names(self._traits, names - _OF_THE_SLOT)
            if len(self._differs) >= MAX_PROJECTIONS:
                self._differs.clear()
            found = self._differs[names] = bool(escaped)
        return found


class JobSnapshot(AdSnapshot):
    """Jobs of a task queue, or one of them, at one time; `priority` returns that of their user."""

    def __init__(self, view: AdView, traits: Traits, priority: Callable[[], float]) -> None:
        super().__init__(view, lambda: dict.fromkeys(USER_PRIORITY, priority()))
        self.requirements = traits.requirements_expression
        self.rank = traits.rank


SINGLE_JOBS_AT_ONCE = 20
"""Where jobs of a task queue have to be evaluated one by one, a slot looks at so many of those that wait first."""


_MOST_GONE = 200
"""After so many jobs that other matches were quicker to take, a request evaluates only what it has read."""


class SingleJob(NamedTuple):
    """A waiting job with the view of its own ad."""

    head: QueueHead
    view: AdView


class SingleJobs:
    """The first jobs of task queues whose jobs are evaluated one by one, as one transaction has read them.

    `most` = how many of a task queue are evaluated for a slot.
    """

    def __init__(self, most: int = SINGLE_JOBS_AT_ONCE) -> None:
        self._most = most
        self._views: dict[int, AdView] = {}
        self._gone: set[int] = set()
        self._exhausted: set[int] = set()

    def of(self, waiting: WaitingJobs) -> list[SingleJob]:
        """Return the first jobs of a task queue that still wait, as far as they were read, in order."""
        known = (
            SingleJob(head, self._views[head.job_id])
            for head in waiting.heads
            if head.job_id in self._views and head.job_id not in self._gone
        )
        return list(islice(known, self._most))

    def missing(self, waiting: WaitingJobs) -> int:
        """Return how many first jobs of a task queue have to be read so that `of` has all it should; 0 = it has."""
        is_exhausted = waiting.task_queue.id in self._exhausted and not waiting.is_headless
        if is_exhausted or len(self.of(waiting)) >= self._most or len(self._gone) > _MOST_GONE:
            return 0
        return self._most + len(waiting.taken) + len(self._gone)

    def add(self, task_queue_id: int, ads: Mapping[int, Mapping[str, AdValue]], limit: int) -> None:
        """Add the first jobs that the database has of a task queue, by id; fewer than `limit` = there are no more."""
        if len(ads) < limit:
            self._exhausted.add(task_queue_id)
        for job_id in ads.keys() - self._views.keys():
            self._views[job_id] = AdView(folded(ads[job_id]), time_dependent=USER_PRIORITY)

    def discard(self, job_id: int) -> None:
        """Remove a job that another match was quicker to take."""
        self._gone.add(job_id)


class JobViews:
    """The views of task queues, the least recently used first."""

    def __init__(self, most: int = MAX_VIEWS) -> None:
        self._most = most
        self._views: OrderedDict[int, JobView] = OrderedDict()

    def view(self, task_queue: TaskQueue) -> JobView:
        """Return the view of a task queue, which never changes its traits."""
        view = self._views.get(task_queue.id)
        if view is None:
            view = self._views[task_queue.id] = JobView(task_queue.traits)
            if len(self._views) > self._most:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(task_queue.id)
        return view


def view_key(wanted: Names, view: JobView) -> str | None:
    """Return a key of the view of the attributes `wanted`; None = the jobs are evaluated each time."""
    projection = AdSnapshot(view, dict).projection(wanted)
    is_individual = projection.is_time_dependent or projection.other_names or view.differs_by_job(wanted)
    return None if is_individual else projection.key


def requirements_key(view: JobView, text: str) -> str | None:
    """Return a key of the jobs' expression and its view of them; None = they are evaluated each time."""
    job = AdSnapshot(view, dict)
    refers = job.references_of(text)
    projection = job.projection(None if refers.is_dynamic else refers.my, refers.free)
    is_individual = (
        view.expressions_differ_by_job
        or projection.is_time_dependent
        or projection.other_names is None
        or bool(projection.other_names)
    )
    return None if is_individual else f"{text}\n{projection.key}"


def folded(ad: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return an ad by folded name."""
    return {fold(name): value for name, value in ad.items()}


MAX_CLUSTERED_EXPRESSIONS = 32
"""The number of expressions for which autoclusters are kept."""

MAX_ORDERS = 256
"""The number of orders that are kept for an expression."""


@dataclass(slots=True)
class AutoCluster:
    """Task queues with an equal view; `example` is one of them, or was."""

    example: TaskQueue
    bits: int = 0


class Rank(NamedTuple):
    """A slot's RANK of a job; `is_constant` = it is the same later, and for all slots with an equal key."""

    rank: float
    is_constant: bool


class RankTier(NamedTuple):
    """The task queues whose jobs a slot ranks equally, as a bit set."""

    rank: float
    bits: int


class AutoClusters:
    """The autoclusters of all known task queues for one expression.

    `key_of` returns the key of a task queue; None = it is an autocluster of its own.
    """

    def __init__(self, waiting: TaskQueueIndex, key_of: Callable[[TaskQueue], str | None]) -> None:
        self._waiting = waiting
        self._key_of = key_of
        self._by_key: dict[str | int, AutoCluster] = {}
        self._keys: dict[int, str | int] = {}
        self._seen = -1
        self._orders: dict[tuple[Hashable, int], list[RankTier]] = {}

    def in_order(self, key: Hashable, among: int, rank_of: Callable[[TaskQueue], Rank]) -> list[RankTier]:
        """Return the autoclusters that meet the bit set `among`, the highest rank first; equal ranks are joined.

        The result of `rank_of` is cached for equal `key`s, if it is constant.
        """
        self._sync()
        cached = self._orders.get((key, among))
        if cached is not None:
            return cached
        found = [
            (rank_of(autocluster.example), autocluster.bits)
            for autocluster in self._by_key.values()
            if autocluster.bits & among
        ]
        ranks: dict[float, int] = {}
        for rank, bits in found:
            ranks[rank.rank] = ranks.get(rank.rank, 0) | bits
        order = [RankTier(rank, ranks[rank]) for rank in sorted(ranks, reverse=True)]
        if all(rank.is_constant for rank, _ in found):
            while len(self._orders) >= MAX_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[key, among] = order
        return order

    def of(self, waiting: WaitingJobs) -> AutoCluster:
        """Return the autocluster of a task queue."""
        self._sync()
        return self._by_key[self._keys[waiting.bit]]

    def _sync(self) -> None:
        changes = self._waiting.bits.changes
        if self._seen == changes.now:
            return
        bits = changes.since(self._seen) if self._seen >= 0 else None
        if bits is None:
            self._by_key.clear()
            self._keys.clear()
            bits = self._waiting.all_bits()
        self._seen = changes.now
        self._orders.clear()
        for bit in dict.fromkeys(bits):
            self._leave(bit)
            waiting = self._waiting.find_at_bit(bit)
            if waiting is not None:
                self._join(waiting)

    def _join(self, waiting: WaitingJobs) -> None:
        key_or_none = self._key_of(waiting.task_queue)
        key = waiting.task_queue.id if key_or_none is None else key_or_none
        autocluster = self._by_key.get(key)
        if autocluster is None:
            autocluster = self._by_key[key] = AutoCluster(waiting.task_queue)
        autocluster.bits |= 1 << waiting.bit
        self._keys[waiting.bit] = key

    def _leave(self, bit: int) -> None:
        key = self._keys.pop(bit, None)
        if key is None:
            return
        self._by_key[key].bits &= ~(1 << bit)
        if not self._by_key[key].bits:
            del self._by_key[key]


class JobViewCache:
    """The views and autoclusters of task queues, kept between requests."""

    def __init__(self, waiting: TaskQueueIndex, views: JobViews) -> None:
        self.views = views
        self.waiting = waiting
        self._by_names: dict[Names, AutoClusters] = {}
        self._by_requirements = AutoClusters(waiting, self._requirements)

    def by(self, wanted: Names) -> AutoClusters:
        """Return the autoclusters for a view of these attributes."""
        autoclusters = self._by_names.get(wanted)
        if autoclusters is None:
            while len(self._by_names) >= MAX_CLUSTERED_EXPRESSIONS:
                del self._by_names[next(iter(self._by_names))]
            autoclusters = self._by_names[wanted] = AutoClusters(
                self.waiting, lambda each: view_key(wanted, self.views.view(each))
            )
        return autoclusters

    @property
    def by_requirements(self) -> AutoClusters:
        """The autoclusters by the jobs' own expressions."""
        return self._by_requirements

    def _requirements(self, task_queue: TaskQueue) -> str | None:
        text = task_queue.traits.requirements_expression
        return requirements_key(self.views.view(task_queue), text) if text else ""
