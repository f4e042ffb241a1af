"""How many pilots each queue gets, and why. Keeps no state from one cycle to the next.

Rules
-----
- Demand is counted once over all queues that could take it: jobs that an idle slot, a pilot on its way or a pilot
  just planned will take are no demand for other queues.
- A running limit lets so many more jobs run at its queues; jobs beyond that are no demand there. What idle slots and
  pilots on their way take counts first.
- The limits are those of the queue. The number of pilots without work is limited by the number at work, and by how
  many pilots returned empty.
- A pilot returns empty when it ends for lack of work or time, or is ended by its batch system, without having run a
  job. Each sending in a row that returned empty halves the allowance. At zero, single probe pilots go after pauses
  that double. A pilot that runs a job restores the full allowance.
- The server keeps the evidence, so all replicas of a director see the same.

Source: operators of pilots, DIRAC#778 ("pilots find no match and die: want back-off and a throttle driven by no-match
reports"), DIRAC#131, HyperQueue#248 and #937.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from pilotage.backoff import backoff
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.demand import Demand, EmptyReturns, LimitRoom, QueueSupply
from pilotage_agents.batch_systems.shape import Shape

FIRST_PAUSE = timedelta(minutes=1)
"""The time from the last empty pilot to the first probe pilot."""

LONGEST_PAUSE = timedelta(minutes=20)
"""The longest pause between an empty pilot and the next probe; new work may wait for it this long."""


@dataclass(frozen=True, slots=True)
class PilotAllowance:
    """How many pilots without work a queue may have, and why not more."""

    pilots: int
    reason: str


def pilot_allowance(pilots: int, empty: EmptyReturns | None) -> PilotAllowance:
    """Return the allowance of a queue that would have `pilots` without empty returns."""
    if empty is None or empty.sendings == 0:
        return PilotAllowance(pilots, f"no more than {pilots} may be without work until more are at work")
    left = pilots >> empty.sendings
    if left:
        return PilotAllowance(left, f"no more than {left} may be without work, as {_empty(empty)}")
    trials = empty.sendings - pilots.bit_length() + 1
    pause = backoff(trials, FIRST_PAUSE, LONGEST_PAUSE) - empty.last_ago
    if pause <= timedelta(0):
        return PilotAllowance(1, f"one probe pilot, as {_empty(empty)}")
    return PilotAllowance(0, f"{_empty(empty)}; the next probe goes in {pause.total_seconds():.0f} s")


def _empty(empty: EmptyReturns) -> str:
    if empty.pilots == 1:
        return "the last pilot came back without having run a job"
    return f"the last {empty.pilots} pilots came back without having run a job"


NO_SUPPLY = QueueSupply(known=True)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """A queue's limits: pilots in all, waiting pilots (None = no limit), and idle pilots kept ready."""

    max_total: int | None = None
    max_waiting: int | None = None
    min_idle: int = 0


@dataclass(frozen=True, slots=True)
class Ramp:
    """How fast a queue grows: `start` pilots may be without work, or `factor` for each at work if that is more."""

    start: int = 10
    factor: int = 1


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the director sees it; `pilot` is what one pilot there offers to jobs.

    `closed` = why its pilots cannot get jobs, so it gets no pilots (empty = they can). `paused` = why it gets no pilots
    for a while, although its present ones take jobs. `idle_elsewhere` = its idle slots belong to other queues of the
    plan, where jobs are placed in them; here they only bound the pilots without work.
    """

    id: QueueId
    pilot: Shape
    supply: QueueSupply = NO_SUPPLY
    limits: QueueLimits = QueueLimits()
    closed: str = ""
    paused: str = ""
    idle_elsewhere: bool = False

    @property
    def blocked_reason(self) -> str:
        """Why it gets no pilots; empty = it may get some."""
        return self.closed or self.paused


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The number of pilots for a queue, and why not more or fewer; `reasons` is never empty."""

    id: QueueId
    pilots: int
    reasons: tuple[str, ...]


def plan_pilots(
    demands: Sequence[Demand], queues: Sequence[QueueState], ramp: Ramp = Ramp(), limits: Sequence[LimitRoom] = ()
) -> tuple[QueuePlan, ...]:
    """Return one plan per queue, in their order; `limits` are those that the demands name."""
    ledgers = [_Ledger.of(queue, ramp) for queue in queues]
    rooms = [_Room(each, each.room, frozenset(each.queue_indexes)) for each in limits]
    # Jobs that few queues can take are placed first; jobs that could go anywhere would take their places.
    for demand in sorted(demands, key=lambda demand: len(demand.queue_indexes)):
        counting = [rooms[index] for index in demand.limit_indexes]
        places = [
            _Place(ledgers[index], demand.amounts, [room for room in counting if index in room.queues])
            for index in demand.queue_indexes
        ]
        _place(demand, places)
    for room in rooms:
        for index in room.queues if room.left == 0 else ():
            ledgers[index].limit_reached = room.stated.limit
    for ledger in ledgers:
        ledger.keep_ready()
    return tuple(ledger.plan() for ledger in ledgers)


def has_room(queue: QueueState, ramp: Ramp) -> bool:
    """Whether a plan may send pilots to the queue, whatever the demand."""
    return _free_room(queue, ramp)[0] > 0


@dataclass(slots=True)
class _Ledger:
    """The account of one queue during planning.

    `share` = the unused part of waiting and planned pilots, in pilots; `jobs` = the jobs placed on planned pilots.
    """

    queue: QueueState
    room: int
    bound: str
    idle: list[tuple[Shape, int]]
    share: Fraction
    planned: int = 0
    jobs: int = 0
    covered: int = 0
    refused: int = 0
    too_big: int = 0
    ready: int = 0
    limit_reached: str = ""

    @classmethod
    def of(cls, queue: QueueState, ramp: Ramp) -> _Ledger:
        room, bound = _free_room(queue, ramp)
        supply = NO_SUPPLY if queue.closed else queue.supply
        here = () if queue.idle_elsewhere else supply.idle
        idle = [(Shape.of(slots.free), slots.count) for slots in here]
        return cls(queue, room, bound, idle, Fraction(supply.pilots_waiting))

    @property
    def waiting(self) -> int:
        return self.queue.supply.pilots_waiting + self.planned

    def cover(self, request: Amounts, jobs: int) -> int:
        """Place jobs on the present supply; returns how many fit."""
        if jobs == 0 or not (self.idle or self.share):
            return 0
        per_pilot = self.queue.pilot.holds(request)
        if per_pilot == 0:
            return 0
        by_idle = self._fill_idle(request, jobs)
        by_share = min(jobs - by_idle, int(self.share * per_pilot))
        self.share -= Fraction(by_share, per_pilot)
        self.covered += by_idle + by_share
        return by_idle + by_share

    def _fill_idle(self, request: Amounts, jobs: int) -> int:
        """Place jobs in idle slots; returns how many fit."""
        before, self.idle, left = self.idle, [], jobs
        for free, count in before:
            each_holds = free.holds(request) if left else 0
            if each_holds == 0:
                self.idle.append((free, count))
                continue
            taken = min(left, each_holds * count)
            left -= taken
            full, rest = divmod(taken, each_holds)
            parts = (
                (free.less(request, each_holds), full),
                (free.less(request, rest), 1 if rest else 0),
                (free, count - full - (1 if rest else 0)),
            )
            self.idle += [part for part in parts if part[1]]
        return jobs - left

    def add_pilot(self, request: Amounts, jobs: int) -> int:
        """Plan one more pilot for `jobs`; returns how many it takes."""
        per_pilot = self.queue.pilot.holds(request)
        taken = min(jobs, per_pilot)
        self.planned += 1
        self.room -= 1
        self.jobs += taken
        self.share += 1 - Fraction(taken, per_pilot)
        return taken

    def keep_ready(self) -> None:
        """Plan the missing pilots of those kept ready."""
        idle_cpus = sum((free.cpus or 0) * count for free, count in self.idle)
        whole_idle = idle_cpus // (self.queue.pilot.cpus or 1)
        lacking = self.queue.limits.min_idle - int(self.share) - whole_idle
        self.ready = max(0, min(lacking, self.room))
        self.planned += self.ready
        self.room -= self.ready

    def plan(self) -> QueuePlan:
        return QueuePlan(self.queue.id, self.planned, tuple(self._reasons()))

    def _reasons(self) -> list[str]:
        if self.queue.closed:
            return [self.queue.closed]
        reasons = [self.queue.paused] if self.queue.paused else []
        if self.covered:
            reasons.append(f"idle slots and pilots on their way take {_count(self.covered, 'waiting job')}")
        if self.jobs:
            reasons.append(f"{_count(self.jobs, 'job')} more to run")
        if self.ready:
            reasons.append(f"{_count(self.ready, 'pilot')} kept ready")
        if self.refused and not self.queue.paused:
            reasons.append(f"no pilot for {_count(self.refused, 'job')}: {self.bound}")
        if self.limit_reached and not self.queue.paused:
            reasons.append(f"no pilot for jobs beyond a limit: {self.limit_reached}")
        if self.too_big:
            reasons.append(f"a pilot there is too small for {_count(self.too_big, 'job')}")
        return reasons or ["no demand"]


@dataclass(slots=True)
class _Room:
    """What a limit lets run besides the jobs placed; `queues` are indexes."""

    stated: LimitRoom
    left: int
    queues: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A queue for the jobs of one demand, with the limits that count them there."""

    ledger: _Ledger
    request: Amounts
    rooms: Sequence[_Room]

    def most(self, jobs: int) -> int:
        """Return how many of so many jobs the limits let run there."""
        return min([jobs, *(room.left // room.stated.size(self.request) for room in self.rooms)])

    def take(self, jobs: int) -> int:
        """Count jobs that were placed there; returns their number."""
        for room in self.rooms:
            room.left -= jobs * room.stated.size(self.request)
        return jobs


def _place(demand: Demand, places: Sequence[_Place]) -> None:
    """Place the jobs of `demand` on the present supply, then on new pilots, evenly over the queues."""
    left = demand.waiting
    for place in places:
        left -= place.take(place.ledger.cover(demand.amounts, place.most(left)))
    fitting = [place for place in places if place.ledger.queue.pilot.holds(demand.amounts)]
    for place in places:
        place.ledger.too_big += 0 if place.ledger.queue.pilot.holds(demand.amounts) else left
    open_queues = [(place.ledger.waiting, index) for index, place in enumerate(fitting) if place.ledger.room > 0]
    heapq.heapify(open_queues)
    while left > 0 and open_queues:
        _, index = heapq.heappop(open_queues)
        place = fitting[index]
        most = place.most(left)
        if most == 0:
            continue
        left -= place.take(place.ledger.add_pilot(demand.amounts, most))
        if place.ledger.room > 0:
            heapq.heappush(open_queues, (place.ledger.waiting, index))
    for place in fitting:
        place.ledger.refused += place.most(left)


def _free_room(queue: QueueState, ramp: Ramp) -> tuple[int, str]:
    """Return how many more pilots the queue takes now, and the limit that applies."""
    supply, limits = queue.supply, queue.limits
    if queue.blocked_reason:
        return 0, queue.blocked_reason
    at_work = max(0, supply.pilots_running - supply.idle_cpus // (queue.pilot.cpus or 1))
    most = max(ramp.start, ramp.factor * at_work)
    trusted = pilot_allowance(most, supply.empty_returns)
    # An idle pilot has all its cores free in one slot.
    idle = sum(slots.count for slots in supply.idle if slots.free.cpus >= (queue.pilot.cpus or 1))
    without_work = supply.pilots_waiting + max(0, idle - limits.min_idle)
    # Pilots that the operator wants ready are idle on purpose: they do not lower the allowance, nor does it limit them.
    to_keep_ready = min(limits.min_idle - idle, most) - supply.pilots_waiting
    bounds = [(max(trusted.pilots - without_work, to_keep_ready), trusted.reason)]
    if limits.max_waiting is not None:
        bounds.append((limits.max_waiting - supply.pilots_waiting, f"MaxWaitingJobs is {limits.max_waiting}"))
    if limits.max_total is not None:
        there = supply.pilots_waiting + supply.pilots_running
        bounds.append((limits.max_total - there, f"MaxTotalJobs is {limits.max_total}"))
    room, bound = min(bounds)
    return max(0, room), bound


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
