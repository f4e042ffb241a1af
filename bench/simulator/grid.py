"""The grid in virtual time: an event loop over real decisions.

Real: task queues, matching, shares, quotas and running limits, the director's plan, circuit breakers, slots and claims.
A model: the delay of pilots in batch queues, bad nodes, and steps. What happens within a step happens at its end, and
its free slots are matched together, as by pilots that share a server. Only steps with an event cost time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import NamedTuple

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account, GroupId
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage.values.demand import Demand, IdleSlots, QueueSupply
from pilotage.values.offers import SlotOffer
from pilotage_agents.site_director.director import DirectorSnapshot
from pilotage_agents.site_director.planning import has_room, plan_pilots
from pilotage_agents.site_director.queues import QueueFailures, demands_of_served_vos
from pilotage_pilot.core.model import Now
from pilotage_server.core.accounting.fair_share import FairShare, ShareSettings
from pilotage_server.core.accounting.limits import LimitIndex, LimitRound
from pilotage_server.core.health.black_holes import EvidenceKey, Location, LocationLevel, locations_of
from pilotage_server.core.health.evidence import AttemptGroup, Evidence
from pilotage_server.core.health.throttles import (
    Throttle,
    opened_locations,
    throttle_changes,
    trial_deadline,
    tripped_locations,
)
from pilotage_server.core.matching.demand import (
    EMPTY_RETURN_WINDOW,
    EmptyPilot,
    LimitRooms,
    demand_of,
    empty_returns,
    job_time_of_pilots_s,
    quota_rooms,
)
from pilotage_server.core.matching.job_views import SingleJobs
from pilotage_server.core.matching.matcher import MAX_JOBS_PER_ROUND, Matcher, NeedsHeads, Reservation
from pilotage_server.core.matching.slot_match import MatchRequest
from pilotage_server.core.matching.slot_policy import SlotPolicies
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.rules import RunningLimit
from simulator.configuration import Configuration
from simulator.pilots import SimulatedPilot
from simulator.trace import TracedJob

START = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLED_EVERY_S = 3600.0
_PILOTS_AT_ONCE = 64
"""Idle pilots are tried in portions of the number of new jobs, at most of this size, until no new job is left."""

_LONGEST_LIFE_S = 7 * 86400
_NODE_DISK_MIB, _MIB_PER_CORE = 100_000, 4000
"""The size of a node where the tree states none."""


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job of the trace and what happened to it; times in seconds, None = not yet."""

    number: int
    traced: TracedJob
    task_queue: TaskQueue
    first_started_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    failed: bool = False


class _Run(NamedTuple):
    """A running attempt; `evicted` = its pilot ends before it."""

    job: SimulatedJob
    pilot: SimulatedPilot
    key: AttemptKey
    weight: float
    cpus: int
    limits: tuple[RunningLimit, ...]
    started_s: float
    end_s: float
    failed: bool
    evicted: bool
    trial: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The grid at one time: the cores of pilots, and the busy cores and waiting jobs of each group that has any."""

    time_s: float
    pilot_cores: int
    busy: Counter[GroupId]
    waiting: Counter[GroupId]

    @property
    def busy_cores(self) -> int:
        """The cores of all running jobs."""
        return sum(self.busy.values())


@dataclass(slots=True)
class Totals:
    """What has happened; `lost_core_s` is the part of `busy_core_s` of evicted attempts."""

    pilots_sent: int = 0
    pilots_ended: int = 0
    pilots_wasted: int = 0
    evictions: int = 0
    failures: int = 0
    busy_core_s: float = 0.0
    lost_core_s: float = 0.0
    used_core_s: defaultdict[Account, float] = field(default_factory=lambda: defaultdict(float))


class SimulatedGrid:
    """One configuration under one trace."""

    def __init__(self, configuration: Configuration, jobs: Iterable[TracedJob]) -> None:
        self.configuration = configuration
        self.jobs: list[SimulatedJob] = []
        self.samples: list[Sample] = []
        self.totals = Totals()
        self.throttles: dict[Location, Throttle] = {}
        self.running: Counter[RunningLimit] = Counter()
        """The jobs that each limit counts."""

        self._model = configuration.model
        self._draw = random.Random(self._model.seed)
        self._order = random.Random(self._model.seed)
        self._to_come = deque(sorted(jobs, key=lambda job: job.came_s))
        self._due: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        self._due_last: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        self._steps: list[int] = []
        self._busy: Counter[Account] = Counter()
        self._evidence = Evidence()
        self._ended: list[AttemptGroup] = []
        self._set_time(0.0)
        self._prepare_server()
        self._prepare_pilots()
        self._at(0.0, self._direct, is_last=True)
        self._at(0.0, self._sample, is_last=True)
        if self._to_come:
            self._at(self._to_come[0].came_s, self._submit)

    def _prepare_server(self) -> None:
        configuration = self.configuration
        self.shares = FairShare(configuration.rules.sharing)
        self.shares.settings = ShareSettings(configuration.rules.sharing, pool_size=configuration.pool_cores)
        self._limits = LimitIndex(configuration.rules.running_limits)
        self._waiting = TaskQueueIndex()
        self._matcher = Matcher(self._waiting, self.shares, SlotPolicies(), configuration.rules.end_margin)
        self._access = QueueAccess(configuration.tree, PoolMappings())
        self._task_queues: dict[tuple[Account, object], TaskQueue] = {}
        self._queued: dict[int, list[int]] = {}
        """The numbers of the waiting jobs of each task queue, as a heap."""

        self._demands: dict[int, Demand | None] = {}
        self._left_s = {
            index: left_s
            for index, queue in enumerate(configuration.served)
            if (effective := configuration.tree.effective(queue.id, None)) is not None
            and (left_s := job_time_of_pilots_s(effective, configuration.rules.end_margin)) is not None
        }

    def _prepare_pilots(self) -> None:
        self._queues = [queue.id for queue in self.configuration.served]
        self._open: dict[QueueId, dict[SimulatedPilot, None]] = {queue: {} for queue in self._queues}
        self._on_their_way: Counter[QueueId] = Counter()
        self._alive: Counter[QueueId] = Counter()
        self._empty: dict[QueueId, list[EmptyPilot]] = {queue: [] for queue in self._queues}
        self._proven: dict[QueueId, datetime] = {}
        self._fresh: dict[QueueId, dict[SimulatedPilot, None]] = {queue: {} for queue in self._queues}
        """Pilots with slots that no job was looked for, since they began or ended a job."""
        self._new_jobs: set[int] = set()
        """The task queues with jobs that the other open slots were not offered."""
        self._tries_all = False
        """Whether a limit, a quota or a circuit breaker may admit jobs to slots that have refused them."""
        self._pilot_cores = 0
        self._planned_nothing_for: object = None
        self._cycle_s = self.configuration.director.interval_s
        self._idle: dict[QueueId, tuple[IdleSlots, ...]] = {}
        """The open slots of each queue, until they change."""

    # Time -----------------------------------------------------------------------------------------------------------

    def _set_time(self, now_s: float) -> None:
        self.now_s = now_s
        self.now = START + timedelta(seconds=now_s)
        self._now = Now(self.now, now_s)

    def run(self, until_s: float) -> None:
        """Run until this time, or until nothing is left to happen but cycles and samples."""
        last = int(until_s / self._model.step_s)
        while self._steps and self._steps[0] <= last:
            step = heapq.heappop(self._steps)
            self._set_time(step * self._model.step_s)
            # Events may add others to the same step.
            events = self._due[step]
            for event in events:
                event()
            del self._due[step]
            self._match()
            for event in self._due_last.pop(step, ()):
                event()
        self._set_time(last * self._model.step_s)

    def _at(self, time_s: float, event: Callable[[], None], *, is_last: bool = False) -> None:
        """Let something happen in the step at whose end a time lies; `is_last` = after the matches of that step."""
        step = ceil(time_s / self._model.step_s - 1e-9)
        if step not in self._due and step not in self._due_last:
            heapq.heappush(self._steps, step)
        (self._due_last if is_last else self._due)[step].append(event)

    def _later(self, time_s: float, event: Callable[[], None], *, is_last: bool = False) -> None:
        """Let something happen at a time, but not before the next step."""
        self._at(max(time_s, self.now_s + self._model.step_s), event, is_last=is_last)

    # Jobs -----------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        came: defaultdict[int, list[SimulatedJob]] = defaultdict(list)
        while self._to_come and self._to_come[0].came_s <= self.now_s:
            traced = self._to_come.popleft()
            job = SimulatedJob(len(self.jobs) + 1, traced, self._task_queue_of(traced))
            self.jobs.append(job)
            came[job.task_queue.id].append(job)
        for jobs in came.values():
            self._enqueue(jobs)
        if self._to_come:
            self._later(self._to_come[0].came_s, self._submit)

    def _task_queue_of(self, traced: TracedJob) -> TaskQueue:
        key = (traced.account, traced.needs)
        task_queue = self._task_queues.get(key)
        if task_queue is None:
            task_queue = TaskQueue(len(self._task_queues) + 1, Traits(traced.account, "", traced.needs))
            self._task_queues[key] = task_queue
            self._queued[task_queue.id] = []
            self._waiting.add(task_queue)
        return task_queue

    def _enqueue(self, jobs: Sequence[SimulatedJob]) -> None:
        """Add jobs of one task queue, the oldest first."""
        id_ = jobs[0].task_queue.id
        for job in jobs:
            heapq.heappush(self._queued[id_], job.number)  # an evicted job is among the oldest again
        self._waiting.add_jobs(id_, QueueHead(0, jobs[0].number), len(jobs))
        self._new_jobs.add(id_)
        self._planned_nothing_for = None

    def _start(self, pilot: SimulatedPilot, slot: str, choice: Reservation, job: SimulatedJob, *, trial: bool) -> None:
        job.attempts += 1
        if job.first_started_s is None:
            job.first_started_s = self.now_s
        key = AttemptKey(job.number, job.attempts)
        pilot.enter(slot, key, job.task_queue.account, choice.amounts, self._now)
        sent = START + timedelta(seconds=pilot.sent_s)
        self._proven[pilot.queue] = max(sent, self._proven.get(pilot.queue, sent))
        limits = self._limits.counting(pilot.queue, job.task_queue.traits)
        for limit in limits:
            self.running[limit] += 1
        self._busy[job.task_queue.account] += choice.amounts.cpus
        run_s = self._model.black_hole_fails_after_s if pilot.is_bad else job.traced.run_s
        evict_s = pilot.lifetime.evict_boot_s()
        end_s = min(self.now_s + run_s, evict_s)
        evicted = end_s == evict_s
        run = _Run(
            job, pilot, key, choice.weight, choice.amounts.cpus, limits, self.now_s, end_s,
            pilot.is_bad and not evicted, evicted, trial,
        )  # fmt: skip
        self._later(end_s, partial(self._end, run))

    def _end(self, run: _Run) -> None:
        account, job, pilot = run.job.task_queue.account, run.job, run.pilot
        used_core_s = (run.end_s - run.started_s) * run.cpus
        self.totals.busy_core_s += used_core_s
        self.totals.used_core_s[account] += used_core_s
        self.shares.end_runs(account, run.weight, self.now)
        for limit in run.limits:
            self.running[limit] -= 1
        self._tries_all |= bool(run.limits) or not self.configuration.rules.sharing.group_accept_surplus
        self._busy[account] -= run.cpus
        pilot.leave(run.key, self._now)
        if self._model.black_hole_nodes:
            self._record(run)
        if run.evicted:
            self.totals.evictions += 1
            self.totals.lost_core_s += used_core_s
            self._enqueue([job])
        else:
            job.ended_s, job.failed = run.end_s, run.failed
            self.totals.failures += run.failed
        if pilot.takes_jobs:
            self._open[pilot.queue][pilot] = None
            self._fresh[pilot.queue][pilot] = None
        else:
            self._end_if_done(pilot)

    # Matching -------------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        """Match the slots that may get a job now.

        A slot for which no job was found gets one only when other jobs come or a limit admits more: the rest of a
        step's slots cannot change that, and time only shortens what it offers.
        """
        tries_all, self._tries_all = self._tries_all, False
        tries_others = tries_all or bool(self._new_jobs)
        queues = [queue for queue in self._queues if self._fresh[queue] or (tries_others and self._open[queue])]
        self._order.shuffle(queues)  # pilots call in no order
        for queue in queues:
            fresh, self._fresh[queue] = self._fresh[queue], {}
            others = [pilot for pilot in self._open[queue] if pilot not in fresh] if tries_others else []
            while others:
                left = _PILOTS_AT_ONCE if tries_all else sum(map(self._waiting.count, self._new_jobs))
                if left <= 0:
                    break
                portion = min(left, _PILOTS_AT_ONCE)
                self._serve(queue, others[:portion])
                del others[:portion]
            self._serve(queue, list(fresh))
        self._new_jobs.clear()

    def _serve(self, queue: QueueId, pilots: list[SimulatedPilot]) -> None:
        """Look for jobs for all slots of pilots of a queue; claims for which there is none end."""
        while pilots:
            self._fill(queue, pilots)
            self._idle.pop(queue, None)
            for pilot in pilots:
                if not pilot.open_slots:
                    self._open[queue].pop(pilot, None)
                elif pilot.idle_since_s == self.now_s:
                    self._watch_idle(pilot)
            # What the claims held is free for others.
            pilots = [pilot for pilot in pilots if pilot.release_claims(self._now)]

    def _fill(self, queue: QueueId, pilots: list[SimulatedPilot]) -> None:
        tripped = tripped_locations(self.throttles.values())
        trials = set[str]()
        by_number = {f"{pilot.number}": pilot for pilot in pilots}
        while True:
            offers: list[SlotOffer] = []
            for pilot in pilots:
                own = pilot.offers(self._now)
                throttle = _throttle_of(tripped, pilot) if tripped else None
                if throttle is not None:
                    own = self._trial_of(throttle, own)
                    trials.update(offer.name for offer in own)
                offers += own
            choices = self._choose(queue, offers) if offers else []
            for choice in choices:
                assert choice.head is not None, "the matcher knows the jobs"
                number, _, slot = choice.slot.partition("/")
                job = self.jobs[choice.head.job_id - 1]
                self._start(by_number[number], slot, choice, job, trial=choice.slot in trials)
            if len(choices) < MAX_JOBS_PER_ROUND:  # more could follow only in another round
                return

    def _choose(self, queue: QueueId, offers: list[SlotOffer]) -> list[Reservation]:
        """Match slots of a queue, and return what each gets."""
        limits = LimitRound({limit: self.running[limit] for limit in self._limits.at(queue)})
        request: MatchRequest | None = MatchRequest(queue, (), tuple(offers), limits, SingleJobs(), self.now)
        made: list[Reservation] = []
        while request is not None:
            chosen = self._matcher.choose(request, self._access)
            made += chosen.reservations
            self._take(chosen.reservations)
            match chosen.rest:
                case NeedsHeads((id_, most, _), rest):
                    first = [QueueHead(0, number) for number in heapq.nsmallest(most, self._queued[id_])]
                    self._matcher.refresh_heads(id_, first, most)
                    request = rest
                case rest:
                    request = rest
        return made

    def _take(self, reservations: Iterable[Reservation]) -> None:
        """Take reserved jobs from their task queues, as a committed transaction does."""
        by_task_queue: defaultdict[int, list[Reservation]] = defaultdict(list)
        for reservation in reservations:
            by_task_queue[reservation.task_queue.id].append(reservation)
        for id_, reserved in by_task_queue.items():
            numbers = [heapq.heappop(self._queued[id_]) for _ in reserved]
            assert [QueueHead(0, number) for number in numbers] == [each.head for each in reserved], "oldest first"
            self._matcher.confirm(reserved, numbers)
            self._matcher.commit(reserved, numbers)

    # Health ---------------------------------------------------------------------------------------------------------

    def _record(self, run: _Run) -> None:
        key = EvidenceKey(run.pilot.queue, run.pilot.node, run.job.task_queue.account)
        lasted = timedelta(seconds=run.end_s - run.started_s)
        failed = run.failed and lasted <= self.configuration.rules.health.fast
        matched = START + timedelta(seconds=run.started_s)
        if not self._ended:
            self._at(self.now_s, self._judge)
        self._ended.append(AttemptGroup(key, failed, 1, matched, lasted, run.trial))

    def _judge(self) -> None:
        """Open and close circuit breakers after the ends of this step."""
        rules, ended = self.configuration.rules.health, self._ended
        self._ended = []
        opened = opened_locations(self.throttles.values())
        self._evidence = self._evidence.with_ended(ended, opened, rules.interval, self.now)
        counts = self._evidence.counts(opened)
        for old, new in throttle_changes(list(self.throttles.values()), counts, ended, rules, self.now):
            if new is not None:
                self.throttles[new.location] = new
                self._expect_trial(new)
            elif old is not None:
                del self.throttles[old.location]
            self._tries_all = True

    def _trial_of(self, throttle: Throttle, offers: list[SlotOffer]) -> list[SlotOffer]:
        """Return the slot that a single job tries now, if a trial is due."""
        if throttle.next_trial is None or throttle.next_trial > self.now or not offers:
            return []
        deadline = trial_deadline(throttle, self.configuration.rules.health, self.now)
        self.throttles[throttle.location] = replace(throttle, next_trial=deadline)
        self._expect_trial(self.throttles[throttle.location])
        return [offers[0]._replace(max_jobs=1)]

    def _expect_trial(self, throttle: Throttle) -> None:
        if throttle.next_trial is not None:
            until_s = (throttle.next_trial - START).total_seconds()
            self._later(until_s, self._try_all)

    def _try_all(self) -> None:
        self._tries_all = True

    # Pilots ---------------------------------------------------------------------------------------------------------

    def _direct(self) -> None:
        """Run a cycle of the site director, unless its input is that of the last one, which sent nothing.

        It follows the matches of the step: at real servers idle slots take new jobs long before a cycle counts them.
        """
        supplies = [self._supply(queue) for queue in self._queues]
        known = (supplies, self.running.copy())
        is_known = known == self._planned_nothing_for and not any(each.empty_returns for each in supplies)
        if not is_known:
            self._planned_nothing_for = known
            self._plan(supplies)
        self._later(self.now_s + self._cycle_s, self._direct, is_last=True)

    def _plan(self, supplies: list[QueueSupply]) -> None:
        served, director = self.configuration.served, self.configuration.director
        states = tuple(
            queue.state(supply, QueueFailures(), self.now) for queue, supply in zip(served, supplies, strict=True)
        )
        is_urgent = DirectorSnapshot(served, (), (), states).is_urgent
        self._cycle_s = director.urgent_interval_s if is_urgent else director.interval_s
        if not any(has_room(state, self.configuration.ramp) for state in states):
            return
        limits = {limit: self.running[limit] for limit in self._limits.limits}
        queues = dict(enumerate(self._queues))
        quotas = quota_rooms(self.shares.round(self.now), self._waiting.accounts(), queues)
        rooms = LimitRooms(queues, self._limits, limits, quotas)
        demands = demands_of_served_vos(self._demand(rooms), served)
        plans = plan_pilots(demands, states, self.configuration.ramp, rooms.counting)
        for plan, queue in zip(plans, served, strict=True):
            shape = queue.facts.pilot
            cpus = shape.cpus or 1
            size = Amounts(
                cpus, shape.memory_mib or cpus * _MIB_PER_CORE, shape.disk_mib or _NODE_DISK_MIB, shape.gpus or 0
            )
            for _ in range(plan.pilots):
                self._planned_nothing_for = None
                self._send(plan.id, size, float(queue.facts.wall_time_s or _LONGEST_LIFE_S))

    def _demand(self, rooms: LimitRooms) -> list[Demand]:
        """Return the real demand; which queues admit a task queue is found once, since the tree does not change."""
        found = []
        queues = dict(enumerate(self._queues))
        for each in self._waiting.waiting():
            number = each.task_queue.id
            if number not in self._demands:
                self._demands[number] = demand_of(each, queues, self._access, self._left_s)
            known = self._demands[number]
            if known is not None:
                demand = rooms.bounded(replace(known, waiting=each.count), each.task_queue)
                found += [] if demand is None else [demand]
        return found

    def _supply(self, queue: QueueId) -> QueueSupply:
        tripped = tripped_locations(self.throttles.values())
        if tripped or queue not in self._idle:
            idle = Counter(
                slot.free
                for pilot in self._open[queue]
                if not tripped or _throttle_of(tripped, pilot) is None
                for slot in pilot.open_slots
            )
            self._idle[queue] = tuple(IdleSlots(free, count) for free, count in idle.items())
        places = (Location(LocationLevel.QUEUE, *queue), Location(LocationLevel.SITE, queue.site))
        throttled = next((str(tripped[place]) for place in places if place in tripped), "")
        self._empty[queue] = [each for each in self._empty[queue] if each.ended > self.now - EMPTY_RETURN_WINDOW]
        return QueueSupply(
            known=True,
            pilots_waiting=self._on_their_way[queue],
            pilots_running=self._alive[queue],
            idle=self._idle[queue],
            throttled=throttled,
            empty_returns=empty_returns(self._empty[queue], self._proven.get(queue), self.now),
        )

    def _send(self, queue: QueueId, size: Amounts, wall_time_s: float) -> None:
        self.totals.pilots_sent += 1
        is_bad = self._draw.random() < self._model.black_hole_nodes
        pilot = SimulatedPilot(self.totals.pilots_sent, queue, size, self.now_s, is_bad)
        self._on_their_way[queue] += 1
        delay_s = self._draw.expovariate(1 / self._model.start_delay_s) if self._model.start_delay_s else 0.0
        self._later(self.now_s + delay_s, partial(self._begin, pilot, wall_time_s))

    def _begin(self, pilot: SimulatedPilot, wall_time_s: float) -> None:
        self._on_their_way[pilot.queue] -= 1
        self._alive[pilot.queue] += 1
        self._pilot_cores += pilot.size.cpus
        pilot.start(self._now, wall_time_s)
        self._open[pilot.queue][pilot] = None
        self._fresh[pilot.queue][pilot] = None
        self._later(pilot.lifetime.close_boot_s(), partial(self._close, pilot))

    def _watch_idle(self, pilot: SimulatedPilot) -> None:
        self._later(self.now_s + self.configuration.director.max_idle_s, partial(self._end_if_done, pilot))

    def _close(self, pilot: SimulatedPilot) -> None:
        """Take no more jobs: the time that is left is too short."""
        pilot.close()
        self._forget_open(pilot)
        self._end_if_done(pilot)

    def _forget_open(self, pilot: SimulatedPilot) -> None:
        self._open[pilot.queue].pop(pilot, None)
        self._fresh[pilot.queue].pop(pilot, None)
        self._idle.pop(pilot.queue, None)

    def _end_if_done(self, pilot: SimulatedPilot) -> None:
        """End a pilot without jobs that was idle for too long, or has no time for another job."""
        if pilot.ended or pilot.idle_since_s is None:
            return
        is_idle = self.now_s - pilot.idle_since_s >= self.configuration.director.max_idle_s
        if not is_idle and pilot.takes_jobs:
            return
        pilot.ended = True
        self._forget_open(pilot)
        self._alive[pilot.queue] -= 1
        self._pilot_cores -= pilot.size.cpus
        self.totals.pilots_ended += 1
        if not pilot.has_run:
            self.totals.pilots_wasted += 1
            self._empty[pilot.queue].append(EmptyPilot(START + timedelta(seconds=pilot.sent_s), self.now))

    # Samples --------------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._later(self.now_s + SAMPLED_EVERY_S, self._sample, is_last=True)
        waiting, busy = Counter[GroupId](), Counter[GroupId]()
        for task_queue in self._task_queues.values():
            waiting[task_queue.account.group_id] += len(self._queued[task_queue.id])
        for account, cores in self._busy.items():
            busy[account.group_id] += cores
        self.samples.append(Sample(self.now_s, self._pilot_cores, +busy, +waiting))

    def check(self) -> None:
        """Assert the invariants."""
        self._matcher.check()
        for limit, jobs in self.running.items():
            assert 0 <= jobs <= limit.at_most, f"{limit}: {jobs} run"
        assert sum(self._busy.values()) <= self._pilot_cores, "more cores are busy than there are"


def _throttle_of(tripped: Mapping[Location, Throttle], pilot: SimulatedPilot) -> Throttle | None:
    places = locations_of(pilot.queue, pilot.node)
    return next((tripped[place] for place in places if place in tripped), None)
