"""Which jobs are to be raced by one more copy, and why the others are not.

Rules
-----
A set is at its tail when enough of its jobs have ended well and none waits; of what runs then, a job is raced that has
run longer than others took. The thresholds are those of speculative execution in Apache Spark
(`spark.speculation.quantile`, `spark.speculation.multiplier`), over the time that 95 of 100 jobs took in place of the
median: a copy on a grid costs more than one in a cluster, as it has to find a slot on another site first.
Urgent jobs are raced as soon as they have run a while. No copy is made while another of the same job has not started,
for only then is it known where the next must not go; none where no other site could take it; and none past the bounds.
Where a free slot is needed, each copy needs one of its own.
Those go first that are urgent, then those that have run longest for what they should take.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RacingRules:
    """When to race: parts and factors are numbers, times are in seconds; what each means stands in `RacerSettings`."""

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
class Owner:
    """Whose a job is."""

    vo: str
    group: str
    name: str

    def __str__(self) -> str:
        """Return "vo/group/name"."""
        return f"{self.vo}/{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class Runner:
    """A job that runs; `sites` = where a copy could run, with free slots, where neither it nor a copy of it was.

    `copies_made` = how many were made since it was submitted, rescheduled or edited, ended ones too.
    """

    job_id: int
    owner: Owner
    running_s: float
    cpus: int = 1
    copies_made: int = 0
    copy_waits: bool = False
    sites: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSet:
    """A set of jobs that may be repeated: of `sampled` ones `done` have ended well, 95 of 100 of them within `p95_s`.

    `waiting` are still to get a slot. Where it is too large for one look the next goes on after `next_after_job`, 0 =
    it begins anew.
    """

    id: int
    jobs: int
    urgent: bool = False
    sampled: int = 0
    done: int = 0
    p95_s: float = 0.0
    waiting: int = 0
    runners: tuple[Runner, ...] = ()
    next_after_job: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What races hold and have cost by owner: copies that have not ended, core seconds lost within a day."""

    copies: Mapping[Owner, int] = field(default_factory=dict)
    lost_core_s: Mapping[Owner, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewRival:
    """A copy of a job that is to be made to race with it, and why."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class NotRaced:
    """A job that is not raced now, and why."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round does, the most wanted first, and what it leaves."""

    copies: tuple[NewRival, ...]
    left: tuple[NotRaced, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """A job that is slow or urgent; `lag` = how many times the time it should take it has run.

    `core_s` = what a copy is likely to cost: as much as others took, or as the job itself has, where there are none.
    """

    runner: Runner
    urgent: bool
    lag: float
    core_s: float
    reason: str


def plan_races(sets: Iterable[JobSet], load: Load, rules: RacingRules) -> Plan:
    """Return which jobs get one more copy now."""
    cases: list[_Case] = []
    left: list[NotRaced] = []
    for of in sets:
        for verdict in _judged(of, rules):
            if isinstance(verdict, _Case):
                cases.append(verdict)
            else:
                left.append(verdict)
    cases.sort(key=lambda case: (not case.urgent, -case.lag, case.runner.job_id))
    copies: list[NewRival] = []
    given = _Given(load, rules)
    for case in cases:
        if obstacle := given.obstacle(case):
            left.append(NotRaced(case.runner.job_id, f"{case.reason}, but {obstacle}"))
        else:
            given.give(case)
            copies.append(NewRival(case.runner.job_id, case.reason))
    return Plan(tuple(copies), tuple(left))


def _judged(of: JobSet, rules: RacingRules) -> Iterator[_Case | NotRaced]:
    """Yield for each job that runs whether it is slow or urgent."""
    if of.urgent:
        for runner in of.runners:
            yield _urgent(runner, rules)
        return
    why_not = _why_no_tail(of, rules)
    allowed_s = max(rules.slower_than * of.p95_s, rules.least_run_s)
    for runner in of.runners:
        if why_not:
            yield NotRaced(runner.job_id, why_not)
        elif runner.running_s <= allowed_s:
            yield NotRaced(
                runner.job_id, f"it has run {runner.running_s:.0f} s, and {allowed_s:.0f} s are not too long"
            )
        else:
            reason = f"it has run {runner.running_s:.0f} s, and 95 of 100 jobs of its set took at most {of.p95_s:.0f} s"
            yield _Case(runner, False, runner.running_s / allowed_s, runner.cpus * of.p95_s, reason)


def _urgent(runner: Runner, rules: RacingRules) -> _Case | NotRaced:
    if runner.running_s < rules.urgent_after_s:
        return NotRaced(runner.job_id, f"it is urgent, and races once it has run {rules.urgent_after_s:g} s")
    return _Case(runner, True, runner.running_s, runner.cpus * runner.running_s, "it is urgent")


def _why_no_tail(of: JobSet, rules: RacingRules) -> str:
    """Return why the set is not at its tail; "" = it is."""
    if of.jobs < rules.least_jobs:
        return f"its set has {of.jobs} jobs, and one of fewer than {rules.least_jobs} has no tail"
    if of.waiting:
        return f"{of.waiting} jobs of its set do not run yet"
    if not of.sampled or of.done < rules.part_done * of.sampled:
        part = of.done / of.sampled if of.sampled else 0.0
        return f"{100 * part:.0f} % of its set have ended well, and a tail begins at {100 * rules.part_done:.0f} %"
    return ""


class _Given:
    """What races hold and have cost, with the copies that this round has given out."""

    def __init__(self, load: Load, rules: RacingRules) -> None:
        self._rules = rules
        self._live = Counter(load.copies)
        self._lost = defaultdict[Owner, float](float, load.lost_core_s)
        self._slots: Counter[str] = Counter()

    def give(self, case: _Case) -> None:
        """Count one more copy; it will have a slot of the site that has most to spare."""
        owner = case.runner.owner
        self._live[owner] += 1
        self._lost[owner] += case.core_s
        free = self._free(case.runner)
        self._slots[max(free, key=lambda site: free[site])] += 1

    def obstacle(self, case: _Case) -> str:
        """Return what keeps a job from being raced that should be; "" = nothing."""
        runner, owner, rules = case.runner, case.runner.owner, self._rules
        most = rules.urgent_copies if case.urgent else rules.tail_copies
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
                lost_core_s + case.core_s > rules.most_lost_core_s_a_day,
                f"with {case.core_s:.0f} core seconds for a copy races would have cost {owner} too much within a day"
                f" ({lost_core_s:.0f} so far)",
            ),
        )
        return next((why for holds, why in checks if holds), "")

    def _free(self, runner: Runner) -> dict[str, int]:
        """Return how many slots each site has that could take a copy and that no other copy will have."""
        return {site: slots - self._slots[site] for site, slots in runner.sites.items()}
