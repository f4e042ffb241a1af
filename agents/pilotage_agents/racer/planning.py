"""Which running jobs get one more race copy, and why the others do not.

Rules
-----
- A set is at its tail when enough of its jobs have succeeded and none waits. A job at the tail is raced when it has
  run longer than others took. The thresholds are those of speculative execution in Apache Spark
  (`spark.speculation.quantile`, `spark.speculation.multiplier`), over the 95th percentile instead of the median: a
  copy on a grid costs more than one in a cluster, as it needs a slot on another site.
- An urgent job is raced once it has run for a while.
- A job gets no copy while another of its copies has not started, as the next must go to a site without one; nor when
  no other site could take it, or a limit is reached. Where a free slot is required, each copy needs its own.
- Urgent jobs come first, then those that have run longest compared with their expected time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pilotage.values.accounts import Account
from pilotage.values.races import NewRaceCopy


@dataclass(frozen=True, slots=True)
class RacingRules:
    """When to race: ratios and factors are numbers, times are in seconds; `RacerSettings` explains each."""

    least_jobs: int = 10
    part_done: float = 0.9
    slower_than: float = 1.5
    least_run_s: float = 600
    tail_copies: int = 1
    urgent_copies: int = 2
    urgent_after_s: float = 60
    needs_free_slot: bool = False
    most_copies: int = 100
    most_copies_of_owner: int = 20
    most_lost_core_s_a_day: float = 360_000


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job; `sites` = the sites that could take a copy, with free slots, without those of its earlier runs.

    `copies_made` = copies made since it was submitted, rescheduled or edited, including ended ones.
    """

    job_id: int
    owner: Account
    running_s: float
    cpus: int = 1
    copies_made: int = 0
    copy_waits: bool = False
    sites: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RacedJobs:
    """A set of repeatable jobs: of `sampled` ones `done` succeeded, 95 of 100 of them within `p95_s`.

    `waiting` jobs have no slot yet. For a set too large for one cycle `next_after_job` is the cursor; 0 = from the
    start.
    """

    id: int
    jobs: int
    urgent: bool = False
    sampled: int = 0
    done: int = 0
    p95_s: float = 0.0
    waiting: int = 0
    runners: tuple[RunningJob, ...] = ()
    next_after_job: int = 0


@dataclass(frozen=True, slots=True)
class RaceLoad:
    """The load of races by owner: live copies, and core seconds lost within a day."""

    copies: Mapping[Account, int] = field(default_factory=dict)
    lost_core_s: Mapping[Account, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotRaced:
    """A job that is not raced now, and why."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RacePlan:
    """The copies to start, most wanted first, and the jobs that are not raced."""

    copies: tuple[NewRaceCopy, ...]
    not_raced: tuple[NotRaced, ...]


@dataclass(frozen=True, slots=True)
class _RaceCandidate:
    """A slow or urgent job; `lag` = its run time over the expected time.

    `core_s` = the expected cost of a copy: what others took or, without any, what the job itself has taken.
    """

    runner: RunningJob
    urgent: bool
    lag: float
    core_s: float
    reason: str


def plan_races(sets: Iterable[RacedJobs], load: RaceLoad, rules: RacingRules) -> RacePlan:
    """Return which jobs get one more copy now."""
    candidates: list[_RaceCandidate] = []
    not_raced: list[NotRaced] = []
    for job_set in sets:
        for result in _candidates(job_set, rules):
            if isinstance(result, _RaceCandidate):
                candidates.append(result)
            else:
                not_raced.append(result)
    candidates.sort(key=lambda candidate: (not candidate.urgent, -candidate.lag, candidate.runner.job_id))
    copies: list[NewRaceCopy] = []
    budget = _RaceBudget(load, rules)
    for candidate in candidates:
        if obstacle := budget.obstacle(candidate):
            not_raced.append(NotRaced(candidate.runner.job_id, f"{candidate.reason}, but {obstacle}"))
        else:
            budget.add(candidate)
            copies.append(NewRaceCopy(candidate.runner.job_id, candidate.reason))
    return RacePlan(tuple(copies), tuple(not_raced))


def _candidates(job_set: RacedJobs, rules: RacingRules) -> Iterator[_RaceCandidate | NotRaced]:
    """Yield the slow and urgent jobs of a set, and why the others are not raced."""
    if job_set.urgent:
        for runner in job_set.runners:
            yield _urgent(runner, rules)
        return
    why_not = _no_tail_reason(job_set, rules)
    allowed_s = max(rules.slower_than * job_set.p95_s, rules.least_run_s)
    for runner in job_set.runners:
        if why_not:
            yield NotRaced(runner.job_id, why_not)
        elif runner.running_s <= allowed_s:
            yield NotRaced(
                runner.job_id, f"it has run {runner.running_s:.0f} s, and {allowed_s:.0f} s are not too long"
            )
        else:
            reason = (
                f"it has run {runner.running_s:.0f} s, and 95 of 100 jobs of its set took at most {job_set.p95_s:.0f} s"
            )
            yield _RaceCandidate(runner, False, runner.running_s / allowed_s, runner.cpus * job_set.p95_s, reason)


def _urgent(runner: RunningJob, rules: RacingRules) -> _RaceCandidate | NotRaced:
    if runner.running_s < rules.urgent_after_s:
        return NotRaced(runner.job_id, f"it is urgent, and races once it has run {rules.urgent_after_s:g} s")
    return _RaceCandidate(runner, True, runner.running_s, runner.cpus * runner.running_s, "it is urgent")


def _no_tail_reason(job_set: RacedJobs, rules: RacingRules) -> str:
    """Return why the set is not at its tail; "" = it is."""
    if job_set.jobs < rules.least_jobs:
        return f"its set has {job_set.jobs} jobs, and one of fewer than {rules.least_jobs} has no tail"
    if job_set.waiting:
        return f"{job_set.waiting} jobs of its set do not run yet"
    if not job_set.sampled or job_set.done < rules.part_done * job_set.sampled:
        part = job_set.done / job_set.sampled if job_set.sampled else 0.0
        return f"{100 * part:.0f} % of its set have ended well, and a tail begins at {100 * rules.part_done:.0f} %"
    return ""


class _RaceBudget:
    """The load of races plus the copies planned in this cycle."""

    def __init__(self, load: RaceLoad, rules: RacingRules) -> None:
        self._rules = rules
        self._live = Counter(load.copies)
        self._lost = defaultdict[Account, float](float, load.lost_core_s)
        self._slots: Counter[str] = Counter()

    def add(self, candidate: _RaceCandidate) -> None:
        """Count one more copy; it takes a slot of the site with most free slots."""
        owner = candidate.runner.owner
        self._live[owner] += 1
        self._lost[owner] += candidate.core_s
        free = self._free(candidate.runner)
        self._slots[max(free, key=lambda site: free[site])] += 1

    def obstacle(self, candidate: _RaceCandidate) -> str:
        """Return why a candidate is not raced; "" = it is."""
        runner, owner, rules = candidate.runner, candidate.runner.owner, self._rules
        most = rules.urgent_copies if candidate.urgent else rules.tail_copies
        live, lost_core_s = self._live, self._lost[owner]
        no_slot = rules.needs_free_slot and max(self._free(runner).values(), default=0) <= 0
        checks = (
            (runner.copies_made >= most, f"it has had {runner.copies_made} of {most} copies"),
            (runner.copy_waits, "its copy has not started yet"),
            (not runner.sites, "no other site could take a copy"),
            (no_slot, "no slot for a copy is free on another site"),
            (live.total() >= rules.most_copies, f"{live.total()} copies race already"),
            (live[owner] >= rules.most_copies_of_owner, f"{live[owner]} copies of {owner} race already"),
            (
                lost_core_s + candidate.core_s > rules.most_lost_core_s_a_day,
                f"with {candidate.core_s:.0f} core seconds for a copy races would cost {owner} too much within a day"
                f" ({lost_core_s:.0f} so far)",
            ),
        )
        return next((why for holds, why in checks if holds), "")

    def _free(self, runner: RunningJob) -> dict[str, int]:
        """Return the free slots of each site that could take a copy, without those planned for others."""
        return {site: slots - self._slots[site] for site, slots in runner.sites.items()}
