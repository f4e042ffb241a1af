"""The grid in virtual time: an event loop over real decisions.

Real: task queues, matching, shares, quotas and running limits, the director's plan, circuit breakers, slots and claims.
A model: the delay of pilots in batch queues, bad nodes, and steps. What happens within a step happens at its end, and
its free slots are matched together, as by pilots that share a server. Only steps with an event cost time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage.values.demand import Demand, IdleSlots, QueueSupply
from pilotage.values.offers import SlotOffer
from pilotage_agents.site_director.planning import QueueState, plan_pilots
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
from pilotage_server.core.matching.demand import EMPTY_RETURN_WINDOW, EmptyPilot, demands, empty_returns
from pilotage_server.core.matching.job_views import SingleJobs
from pilotage_server.core.matching.matcher import Matcher, NeedsHeads, Reservation
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


@dataclass(frozen=True, slots=True)
class _Run:
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
    """The grid at one time: cores by what they do, waiting jobs, and cores by group."""

    time_s: float
    pilot_cores: int
    busy_cores: int
    waiting: int
    by_group: dict[str, int]


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
        self._to_come = deque(sorted(jobs, key=lambda job: job.came_s))
        self._due: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        self._steps: list[int] = []
        self._busy: Counter[str] = Counter()
        self._evidence = Evidence()
        self._ended: list[AttemptGroup] = []
        self.now_s = 0.0
        self._prepare_server()
        self._prepare_pilots()
        self._at(0.0, self._direct)
        self._at(0.0, self._sample)
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

    def _prepare_pilots(self) -> None:
        self._queues = [queue.id for queue in self.configuration.served]
        self._open: dict[QueueId, dict[SimulatedPilot, None]] = {queue: {} for queue in self._queues}
        self._on_their_way: Counter[QueueId] = Counter()
        self._alive: Counter[QueueId] = Counter()
        self._empty: dict[QueueId, list[EmptyPilot]] = {queue: [] for queue in self._queues}
        self._proven: dict[QueueId, datetime] = {}
        self._changed: set[QueueId] = set()
        self._pilot_cores = 0
        self._planned_nothing_for: object = None

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The present time."""
        return START + timedelta(seconds=self.now_s)

    @property
    def _now(self) -> Now:
        return Now(self.now, self.now_s)

    def run(self, until_s: float) -> None:
        """Run until this time, or until nothing is left to happen but cycles and samples."""
        last = int(until_s / self._model.step_s)
        while self._steps and self._steps[0] <= last:
            step = heapq.heappop(self._steps)
            self.now_s = step * self._model.step_s
            # Events may add others to the same step.
            events = self._due[step]
            for event in events:
                event()
            del self._due[step]
            if self._changed:
                self._match()
        self.now_s = last * self._model.step_s

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        """Let something happen at the end of the step of a time, which is not the present step unless it is now."""
        step = ceil(time_s / self._model.step_s - 1e-9)
        if step not in self._due:
            heapq.heappush(self._steps, step)
        self._due[step].append(event)

    def _later(self, time_s: float, event: Callable[[], None]) -> None:
        self._at(max(time_s, self.now_s + self._model.step_s), event)

    # Jobs -----------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        while self._to_come and self._to_come[0].came_s <= self.now_s:
            traced = self._to_come.popleft()
            task_queue = self._task_queue_of(traced)
            job = SimulatedJob(len(self.jobs) + 1, traced, task_queue)
            self.jobs.append(job)
            self._enqueue(job)
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

    def _enqueue(self, job: SimulatedJob) -> None:
        heapq.heappush(self._queued[job.task_queue.id], job.number)  # an evicted job is among the oldest again
        self._waiting.add_jobs(job.task_queue.id, QueueHead(0, job.number))
        self._changed.update(queue for queue, pilots in self._open.items() if pilots)
        self._planned_nothing_for = None

    def _start(self, pilot: SimulatedPilot, choice: Reservation, job: SimulatedJob, *, trial: bool) -> None:
        job.attempts += 1
        if job.first_started_s is None:
            job.first_started_s = self.now_s
        key = AttemptKey(job.number, job.attempts)
        slot = choice.slot.partition("/")[2]
        pilot.enter(slot, key, job.task_queue.account, choice.amounts, self._now)
        sent = START + timedelta(seconds=pilot.sent_s)
        self._proven[pilot.queue] = max(sent, self._proven.get(pilot.queue, sent))
        limits = self._limits.counting(pilot.queue, job.task_queue.traits)
        self.running.update(limits)
        self._busy[job.task_queue.account.group] += choice.amounts.cpus
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
        self.running.subtract(run.limits)
        self._busy[account.group] -= run.cpus
        pilot.leave(run.key, self._now)
        if self._model.black_hole_nodes:
            self._record(run)
        if run.evicted:
            self.totals.evictions += 1
            self.totals.lost_core_s += used_core_s
            self._enqueue(job)
        else:
            job.ended_s, job.failed = run.end_s, run.failed
            self.totals.failures += run.failed
        self._open[pilot.queue][pilot] = None
        self._changed.add(pilot.queue)
        if pilot.idle_since_s is not None:
            self._watch_idle(pilot)

    # Matching -------------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        changed = [queue for queue in self._queues if queue in self._changed and self._open[queue]]
        self._changed.clear()
        self._draw.shuffle(changed)  # pilots call in no order
        for queue in changed:
            self._match_queue(queue)

    def _match_queue(self, queue: QueueId) -> None:
        now, tripped = self._now, tripped_locations(self.throttles.values())
        pilots = {f"{pilot.number}": pilot for pilot in self._open[queue]}
        offers, trials = [], set[str]()
        for name, pilot in pilots.items():
            own = [offer._replace(name=f"{name}/{offer.name}") for offer in pilot.offers(now)]
            throttle = _throttle_of(tripped, pilot) if tripped else None
            if throttle is not None:
                own = self._trial_of(throttle, own)
                trials.update(offer.name for offer in own)
            offers += own
        for choice, number in self._choose(queue, offers):
            pilot = pilots[choice.slot.partition("/")[0]]
            self._start(pilot, choice, self.jobs[number - 1], trial=choice.slot in trials)
        for pilot in pilots.values():
            if pilot.release_claims(now):
                self._changed.add(queue)  # what the claims held is free for others
            if not any(pilot.offers(now)):
                del self._open[queue][pilot]
        if self._changed:
            self._at(self.now_s + self._model.step_s, lambda: None)

    def _choose(self, queue: QueueId, offers: list[SlotOffer]) -> list[tuple[Reservation, int]]:
        """Match slots of a queue, and return what each gets, with the job."""
        limits = LimitRound({limit: self.running[limit] for limit in self._limits.at(queue)})
        request: MatchRequest | None = MatchRequest(queue, (), tuple(offers), limits, SingleJobs(), self.now)
        made: list[tuple[Reservation, int]] = []
        while request is not None and request.slots:
            chosen = self._matcher.choose(request, self._access)
            for choice in chosen.reservations:
                number = heapq.heappop(self._queued[choice.task_queue.id])
                assert choice.head == QueueHead(0, number), "the oldest job goes first"
                self._matcher.confirm([choice], [number])
                self._matcher.commit([choice], [number])
                made.append((choice, number))
            match chosen.rest:
                case NeedsHeads((id_, most, _), rest):
                    first = [QueueHead(0, number) for number in heapq.nsmallest(most, self._queued[id_])]
                    self._matcher.refresh_heads(id_, first, most)
                    request = rest
                case None:
                    # The matcher stops at a number of jobs in one round.
                    done = {choice.slot for choice, _ in made}
                    left = tuple(offer for offer in request.slots if offer.name not in done)
                    request = request._replace(slots=left) if chosen.reservations and left else None
        return made

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
            self._later(until_s, lambda: self._changed.update(self._queues))

    # Pilots ---------------------------------------------------------------------------------------------------------

    def _direct(self) -> None:
        """Run a cycle of the site director, unless its input is that of the last one, which sent nothing."""
        self._later(self.now_s + self.configuration.cycle.total_seconds(), self._direct)
        supplies = [self._supply(queue) for queue in self._queues]
        if supplies == self._planned_nothing_for and not any(each.empty_returns for each in supplies):
            return
        served = self.configuration.served
        states: list[QueueState] = [
            queue.state(supply, QueueFailures(), self.now) for queue, supply in zip(served, supplies, strict=True)
        ]
        wanted = demands_of_served_vos(self._demand(), served)
        plans = plan_pilots(wanted, states, self.configuration.ramp)
        for plan, queue in zip(plans, served, strict=True):
            shape = queue.facts.pilot
            cpus = shape.cpus or 1
            size = Amounts(
                cpus, shape.memory_mib or cpus * _MIB_PER_CORE, shape.disk_mib or _NODE_DISK_MIB, shape.gpus or 0
            )
            for _ in range(plan.pilots):
                self._send(plan.id, size, float(queue.facts.wall_time_s or _LONGEST_LIFE_S))
        self._planned_nothing_for = None if any(plan.pilots for plan in plans) else supplies

    def _demand(self) -> list[Demand]:
        """Return the real demand; which queues admit a task queue is found once, since the tree does not change."""
        found = []
        queues = dict(enumerate(self._queues))
        for each in self._waiting.waiting():
            number = each.task_queue.id
            if number not in self._demands:
                self._demands[number] = next(iter(demands([each], queues, self._access, {})), None)
            known = self._demands[number]
            if known is not None:
                found.append(replace(known, waiting=each.count))
        return found

    def _supply(self, queue: QueueId) -> QueueSupply:
        tripped = tripped_locations(self.throttles.values())
        idle = Counter(
            offer.free
            for pilot in self._open[queue]
            if not tripped or _throttle_of(tripped, pilot) is None
            for offer in pilot.offers(self._now)
        )
        places = (Location(LocationLevel.QUEUE, *queue), Location(LocationLevel.SITE, queue.site))
        throttled = next((str(tripped[place]) for place in places if place in tripped), "")
        self._empty[queue] = [each for each in self._empty[queue] if each.ended > self.now - EMPTY_RETURN_WINDOW]
        return QueueSupply(
            known=True,
            pilots_waiting=self._on_their_way[queue],
            pilots_running=self._alive[queue],
            idle=tuple(IdleSlots(free, count) for free, count in idle.items()),
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
        self._changed.add(pilot.queue)
        self._watch_idle(pilot)
        self._later(pilot.lifetime.close_boot_s(), partial(self._close_if_done, pilot))

    def _watch_idle(self, pilot: SimulatedPilot) -> None:
        self._close_if_done(pilot)
        self._later(self.now_s + self.configuration.director.max_idle_s, partial(self._close_if_done, pilot))

    def _close_if_done(self, pilot: SimulatedPilot) -> None:
        """End a pilot without jobs that was idle for too long, or has no time for another job."""
        if pilot.ended or pilot.idle_since_s is None:
            return
        is_idle = self.now_s - pilot.idle_since_s >= self.configuration.director.max_idle_s
        if not is_idle and not pilot.lifetime.is_too_short(self._now):
            return
        pilot.ended = True
        self._open[pilot.queue].pop(pilot, None)
        self._alive[pilot.queue] -= 1
        self._pilot_cores -= pilot.size.cpus
        self.totals.pilots_ended += 1
        if not pilot.has_run:
            self.totals.pilots_wasted += 1
            self._empty[pilot.queue].append(EmptyPilot(START + timedelta(seconds=pilot.sent_s), self.now))

    # Samples --------------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._later(self.now_s + SAMPLED_EVERY_S, self._sample)
        waiting = sum(map(len, self._queued.values()))
        busy = {group: cores for group, cores in self._busy.items() if cores}
        self.samples.append(Sample(self.now_s, self._pilot_cores, sum(busy.values()), waiting, busy))

    def check(self) -> None:
        """Assert the invariants."""
        self._matcher.check()
        for limit, jobs in self.running.items():
            assert 0 <= jobs <= limit.at_most, f"{limit}: {jobs} run"
        assert sum(self._busy.values()) <= self._pilot_cores, "more cores are busy than there are"


def _throttle_of(tripped: Mapping[Location, Throttle], pilot: SimulatedPilot) -> Throttle | None:
    places = locations_of(pilot.queue, pilot.node)
    return next((tripped[place] for place in places if place in tripped), None)
