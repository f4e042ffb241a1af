"""How many pilots each queue should be sent, and why.

Rules
-----
Demand is counted once over all queues that could take it, not once per queue: what an idle slot, a pilot on its
way or a pilot planned a moment ago will take is gone for every other queue. Limits are those of the queue; how many
pilots may be without work is bounded by how many are at work, and by how many came back empty. No memory from one
cycle to the next.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pilotage.resource_tree import QueueId
from pilotage_agents.core.empty_pilots import NONE_EMPTY, EmptyReturns, trust
from pilotage_agents.core.pilot_shape import Shape


@dataclass(frozen=True, slots=True)
class Demand:
    """Jobs that no slot could tell apart; `queues` are places in the list of queues planned for."""

    pool_id: str
    vo: str
    waiting: int
    request: Shape
    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """Slots of live pilots that have the same amounts free."""

    free: Shape
    count: int


@dataclass(frozen=True, slots=True)
class Supply:
    """What there is at a queue already; `idle` are the slots that could take work now, `empty` who came back so."""

    pilots_waiting: int = 0
    pilots_running: int = 0
    idle: tuple[IdleSlots, ...] = ()
    empty: EmptyReturns = NONE_EMPTY

    @property
    def idle_cpus(self) -> int:
        """Cores that live pilots have free."""
        return sum((each.free.cpus or 0) * each.count for each in self.idle)

    def idle_pilots(self, pilot: Shape) -> int:
        """Return how many pilots of this shape are seen to be without any work, all their cores in one slot."""
        return sum(each.count for each in self.idle if (each.free.cpus or 0) >= (pilot.cpus or 1))


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a queue allows: pilots in all, pilots that wait (None = no limit), and idle pilots kept ready."""

    max_total: int | None = None
    max_waiting: int | None = None
    min_idle: int = 0


@dataclass(frozen=True, slots=True)
class Ramp:
    """How fast a queue grows: `start` pilots may be there without work, then `factor` for each that is at work."""

    start: int = 10
    factor: int = 1


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the director sees it; `pilot` is what one pilot there offers to jobs.

    `closed` says why its pilots are of no use and it is sent none (empty = they are), `paused` why it is sent none for
    a while, though those that it has take their jobs.
    """

    id: QueueId
    pilot: Shape
    supply: Supply = Supply()
    limits: QueueLimits = QueueLimits()
    closed: str = ""
    paused: str = ""

    @property
    def why_none(self) -> str:
        """Why it is sent no pilots; empty = it may be sent some."""
        return self.closed or self.paused


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """How many pilots a queue is sent, and in words why so many and not more; `reasons` is never empty."""

    id: QueueId
    pilots: int
    reasons: tuple[str, ...]


def plan_pilots(demands: Sequence[Demand], queues: Sequence[QueueState], ramp: Ramp = Ramp()) -> tuple[QueuePlan, ...]:
    """Return one plan per queue, in their order."""
    ledgers = [_Ledger.of(queue, ramp) for queue in queues]
    # Work that few queues can take is placed first, lest work that could go anywhere takes its places.
    for demand in sorted(demands, key=lambda demand: len(demand.queues)):
        _place(demand, [ledgers[index] for index in demand.queues])
    for ledger in ledgers:
        ledger.keep_ready()
    return tuple(ledger.plan() for ledger in ledgers)


@dataclass(slots=True)
class _Ledger:
    """The account of one queue while a plan is made.

    `share` is what is left of pilots on their way and planned, in pilots; `jobs` counts what was put here.
    """

    queue: QueueState
    room: int
    bound: str
    idle: list[IdleSlots]
    share: Fraction
    planned: int = 0
    jobs: int = 0
    covered: int = 0
    refused: int = 0
    too_big: int = 0
    ready: int = 0

    @classmethod
    def of(cls, queue: QueueState, ramp: Ramp) -> _Ledger:
        room, bound = _room(queue, ramp)
        there = Supply() if queue.closed else queue.supply
        return cls(queue, room, bound, list(there.idle), Fraction(there.pilots_waiting))

    @property
    def waiting(self) -> int:
        return self.queue.supply.pilots_waiting + self.planned

    def cover(self, request: Shape, jobs: int) -> int:
        """Give `jobs` to what is there already; returns how many it takes."""
        per_pilot = self.queue.pilot.holds(request)
        if per_pilot == 0 or jobs == 0:
            return 0
        by_idle = self._fill_idle(request, jobs)
        by_share = min(jobs - by_idle, int(self.share * per_pilot))
        self.share -= Fraction(by_share, per_pilot)
        self.covered += by_idle + by_share
        return by_idle + by_share

    def _fill_idle(self, request: Shape, jobs: int) -> int:
        """Put jobs into idle slots; returns how many found room."""
        before, self.idle, left = self.idle, [], jobs
        for slots in before:
            each_holds = slots.free.holds(request) if left else 0
            if each_holds == 0:
                self.idle.append(slots)
                continue
            taken = min(left, each_holds * slots.count)
            left -= taken
            full, rest = divmod(taken, each_holds)
            parts = (
                (slots.free.less(request, each_holds), full),
                (slots.free.less(request, rest), 1 if rest else 0),
                (slots.free, slots.count - full - (1 if rest else 0)),
            )
            self.idle += [IdleSlots(free, count) for free, count in parts if count]
        return jobs - left

    def add_pilot(self, request: Shape, jobs: int) -> int:
        """Plan one more pilot for `jobs`; returns how many it takes."""
        per_pilot = self.queue.pilot.holds(request)
        taken = min(jobs, per_pilot)
        self.planned += 1
        self.room -= 1
        self.jobs += taken
        self.share += 1 - Fraction(taken, per_pilot)
        return taken

    def keep_ready(self) -> None:
        """Plan what the queue lacks of pilots kept ready."""
        whole_idle = Supply(idle=tuple(self.idle)).idle_cpus // (self.queue.pilot.cpus or 1)
        lacking = self.queue.limits.min_idle - int(self.share) - whole_idle
        self.ready = max(0, min(lacking, self.room))
        self.planned += self.ready
        self.room -= self.ready

    def plan(self) -> QueuePlan:
        return QueuePlan(self.queue.id, self.planned, tuple(self._reasons()))

    def _reasons(self) -> list[str]:
        if self.queue.closed:
            return [self.queue.closed]
        said = [self.queue.paused] if self.queue.paused else []
        if self.covered:
            said.append(f"idle slots and pilots on their way take {_count(self.covered, 'waiting job')}")
        if self.jobs:
            said.append(f"{_count(self.jobs, 'job')} more to run")
        if self.ready:
            said.append(f"{_count(self.ready, 'pilot')} kept ready")
        if self.refused and not self.queue.paused:
            said.append(f"no pilot for {_count(self.refused, 'job')}: {self.bound}")
        if self.too_big:
            said.append(f"a pilot there is too small for {_count(self.too_big, 'job')}")
        return said or ["no demand"]


def _place(demand: Demand, ledgers: list[_Ledger]) -> None:
    """Spread the jobs of `demand` over what is there, then over new pilots, level over the queues."""
    left = demand.waiting
    for ledger in ledgers:
        left -= ledger.cover(demand.request, left)
    fitting = [ledger for ledger in ledgers if ledger.queue.pilot.holds(demand.request)]
    for ledger in ledgers:
        ledger.too_big += 0 if ledger.queue.pilot.holds(demand.request) else left
    open_queues = [(ledger.waiting, place) for place, ledger in enumerate(fitting) if ledger.room > 0]
    heapq.heapify(open_queues)
    while left > 0 and open_queues:
        _, place = heapq.heappop(open_queues)
        ledger = fitting[place]
        left -= ledger.add_pilot(demand.request, left)
        if ledger.room > 0:
            heapq.heappush(open_queues, (ledger.waiting, place))
    if left > 0:
        for ledger in fitting:
            ledger.refused += left


def _room(queue: QueueState, ramp: Ramp) -> tuple[int, str]:
    """Return how many more pilots the queue takes now, and what bounds them in words."""
    supply, limits = queue.supply, queue.limits
    if queue.why_none:
        return 0, queue.why_none
    at_work = max(0, supply.pilots_running - supply.idle_cpus // (queue.pilot.cpus or 1))
    most = max(ramp.start, ramp.factor * at_work)
    trusted = trust(most, supply.empty)
    idle = supply.idle_pilots(queue.pilot)
    without_work = supply.pilots_waiting + max(0, idle - limits.min_idle)
    # What the operator wants ready has no work by intent: it is no reason for mistrust, and mistrust none against it.
    to_keep_ready = min(limits.min_idle - idle, most) - supply.pilots_waiting
    bounds = [(max(trusted.pilots - without_work, to_keep_ready), trusted.words)]
    if limits.max_waiting is not None:
        bounds.append((limits.max_waiting - supply.pilots_waiting, f"MaxWaitingJobs is {limits.max_waiting}"))
    if limits.max_total is not None:
        there = supply.pilots_waiting + supply.pilots_running
        bounds.append((limits.max_total - there, f"MaxTotalJobs is {limits.max_total}"))
    room, words = min(bounds)
    return max(0, room), words


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
