"""Explanations of a job's state: queues that are excluded, slots that do not fit, jobs that go first.

Rules
-----
Reasons come from the code that decides (the eligibility evaluator, the slot check, the shares). Counts are over the
queues that the job's VO may use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilotage.classads.clauses import failing_clauses
from pilotage.classads.evaluation import Ad, evaluation_fault
from pilotage.classads.library import plain_value
from pilotage.classads.text import value_text
from pilotage.resources.eligibility import BAN, DOWNTIME, SIZES, Eligible, NoAccess, Refusal, Refused, Verdict
from pilotage.resources.tree import MAX_WALL_TIME, QueueId
from pilotage.text import count_text, fold
from pilotage_server.core.classads.views import is_random


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One parameter, keyword or size that excludes queues for a job.

    `queues` = how many it excludes, `queues_alone` = how many it alone excludes; `example` = one of these as text, with
    the queue, its value, and the level that states it.
    """

    parameter: str
    asked: str
    queues: int
    queues_alone: int
    example: str


@dataclass(frozen=True, slots=True)
class QueueOutlook:
    """A queue that can run the job, with its pilots and slots.

    `obstacle` = why its slots do not take the job, or why it has no pilots; "" = no reason is known.
    """

    queue: QueueId
    pilots: int = 0
    pilots_waiting: int = 0
    free_slots: int = 0
    obstacle: str = ""


@dataclass(slots=True)
class _Tally:
    """The running count of what one parameter excludes."""

    first: Refusal
    example: str
    queues: int = 0
    alone: int = 0
    example_is_alone: bool = field(default=False)


def eligible(verdicts: Mapping[QueueId, Verdict]) -> tuple[QueueId, ...]:
    """Return the eligible queues in the order of the tree."""
    return tuple(queue for queue, verdict in verdicts.items() if isinstance(verdict, Eligible))


def count_of_vo(verdicts: Mapping[QueueId, Verdict]) -> int:
    """Return how many of the queues the job's VO may use."""
    return sum(not isinstance(verdict, NoAccess) for verdict in verdicts.values())


def exclusions(verdicts: Mapping[QueueId, Verdict]) -> tuple[Exclusion, ...]:
    """Return the exclusions, the one with the most queues first.

    If all queues that could run the job are closed, bans and downtimes come before all else: the owner asked for these
    queues.
    """
    tallies: dict[str, _Tally] = {}
    for queue, verdict in verdicts.items():
        if isinstance(verdict, Refused):
            _count(tallies, queue, verdict.refusals)
    found = [
        Exclusion(tally.first.parameter, asked_text(tally.first), tally.queues, tally.alone, tally.example)
        for tally in tallies.values()
    ]
    found.sort(key=lambda each: (-each.queues, -each.queues_alone, each.parameter))
    if not eligible(verdicts):
        found.sort(key=lambda each: not (each.parameter in (BAN, DOWNTIME) and each.queues_alone))
    return tuple(found)


def _count(tallies: dict[str, _Tally], queue: QueueId, refusals: Sequence[Refusal]) -> None:
    by_parameter = {fold(refusal.parameter): refusal for refusal in reversed(refusals)}
    alone = len(by_parameter) == 1
    for name, refusal in by_parameter.items():
        tally = tallies.setdefault(name, _Tally(refusal, f"{queue}: {refusal}"))
        tally.queues += 1
        tally.alone += alone
        if alone and not tally.example_is_alone:  # a queue that only this excludes is the clearer example
            tally.example, tally.example_is_alone = f"{queue}: {refusal}", True


_UNITS = {fold(name): unit for name, unit in {**SIZES, DOWNTIME: SIZES[MAX_WALL_TIME]}.items()}


def asked_text(refusal: Refusal) -> str:
    """Return the required value as text for people, a plain number with its unit; "" = none."""
    asked = refusal.asked
    if asked is None:
        return ""
    if isinstance(asked, tuple):
        return ", ".join(map(str, asked))
    return str(asked) if isinstance(asked, str) else f"{asked}{_UNITS.get(fold(refusal.parameter), '')}"


class Obstacle(NamedTuple):
    """A reason why one slot does not fit a job; `seen` = the values of this slot, "" = none.

    `clause` is what excludes the slot, without its values, such as "cpus"; "" = `why`.
    """

    why: str
    seen: str = ""
    clause: str = ""

    def __str__(self) -> str:
        """Return the reason with the values in brackets."""
        return f"{self.why} ({self.seen})" if self.seen else self.why


def policy_obstacles(requirements: str, job: Ad, slot: Ad) -> Iterator[Obstacle]:
    """Yield the failing clauses of the job's expression (`requirements`, "" = none) and of the slot's START."""
    if requirements:
        for clause in failing_clauses(requirements, job, slot):
            yield Obstacle(f"of the job's expression, {clause.text}", clause.values)
    if "Start" in slot.library_ad:
        start = value_text(plain_value(slot.library_ad["Start"]))
        fault = evaluation_fault(start, slot, job)
        if fault is not None:
            yield Obstacle(f"the slot's START costs too much to evaluate: {fault}")
            return
        if is_random(start):
            yield Obstacle("the slot's START calls random(), which is refused")
        for clause in failing_clauses(start, slot, job):
            yield Obstacle(f"of the slot's START, {clause.text}", clause.values)


def slots_obstacle(obstacles_of_slots: Sequence[Sequence[Obstacle]]) -> str:
    """Return why no free slot of a queue fits the job; "" = one fits, or none is free."""
    if not obstacles_of_slots or not all(obstacles_of_slots):
        return ""
    counts = Counter(obstacle.why for obstacles in obstacles_of_slots for obstacle in obstacles)
    most, count = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    text = next(str(each) for obstacles in obstacles_of_slots for each in obstacles if each.why == most)
    return text if len(obstacles_of_slots) == 1 else f"{text} ({count} of {len(obstacles_of_slots)} free slots)"


@dataclass(frozen=True, slots=True)
class SlotExclusion:
    """One clause of an expression, or one size, that excludes slots for a job, as condor_q -better-analyze counts.

    `slots` = how many it excludes, `slots_alone` = how many it alone excludes; `example` = one of these with its
    values.
    """

    clause: str
    slots: int
    slots_alone: int
    example: str


@dataclass(frozen=True, slots=True)
class SlotAnalysis:
    """What excludes slots for a job; `seen` slots were examined, and `matching` of them are excluded by nothing."""

    exclusions: tuple[SlotExclusion, ...] = ()
    seen: int = 0
    matching: int = 0


def slot_analysis(obstacles_of_slots: Mapping[str, Sequence[Obstacle]]) -> SlotAnalysis:
    """Return the exclusions of slots, given by their names; those of most slots first."""
    excluded, alone = Counter[str](), Counter[str]()
    examples: dict[str, str] = {}
    for name, obstacles in obstacles_of_slots.items():
        of_slot = {each.clause or each.why: each for each in reversed(obstacles)}
        excluded.update(of_slot.keys())
        if len(of_slot) == 1:
            alone.update(of_slot.keys())
        for clause, obstacle in of_slot.items():
            if clause not in examples or (len(of_slot) == alone[clause] == 1):  # a slot that only this excludes
                examples[clause] = f"{name}: {obstacle}"
    order = sorted(excluded, key=lambda clause: (-excluded[clause], -alone[clause], clause))
    return SlotAnalysis(
        tuple(SlotExclusion(clause, excluded[clause], alone[clause], examples[clause]) for clause in order),
        len(obstacles_of_slots),
        sum(not obstacles for obstacles in obstacles_of_slots.values()),
    )


LEAST_STARTS = 10
"""The fewest starts that an estimate is made from."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a job may start, in seconds from now, by how long comparable jobs have waited lately.

    Half of `starts` jobs that had waited as long as this one started within `median_s`, 80 % of them between `early_s`
    and `late_s`. `basis` says which jobs these are. `why_none` = why there is no estimate; "" = there is one.
    """

    why_none: str
    basis: str = ""
    starts: int = 0
    early_s: float = 0.0
    median_s: float = 0.0
    late_s: float = 0.0


def start_estimate(waits_s: Sequence[float], waited_s: float, basis: str, days: float) -> StartEstimate:
    """Return the estimate for a job that has waited `waited_s`; `waits_s` are those of jobs that started in `days`.

    Waits that were over before count for nothing: a job that still waits is not like these.
    """
    left_s = sorted(wait - waited_s for wait in waits_s if wait >= waited_s)
    if len(waits_s) < LEAST_STARTS:
        found = f"only {len(waits_s)}" if waits_s else "none"
        return StartEstimate(
            f"fewer than {LEAST_STARTS} {basis} have started in the last {days:g} days: {found}", basis
        )
    if len(left_s) < LEAST_STARTS:
        why = f"it has waited longer than {len(waits_s) - len(left_s)} of the {len(waits_s)} {basis} that have started"
        return StartEstimate(f"{why} in the last {days:g} days", basis)
    early, median, late = (left_s[round(part * (len(left_s) - 1))] for part in (0.1, 0.5, 0.9))
    return StartEstimate("", basis, len(left_s), early, median, late)


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """What a job asked of a resource and what its last attempt used at most; None = not asked, or unknown."""

    resource: str
    unit: str
    asked: float | None
    used: float | None


@dataclass(frozen=True, slots=True)
class WaitingFacts:
    """The facts that the summary of a waiting job is made of."""

    vo: str
    queues_total: int
    queues_of_vo: int
    exclusions: tuple[Exclusion, ...]
    outlooks: tuple[QueueOutlook, ...]
    jobs_ahead: int


def waiting_summary(picture: WaitingFacts) -> str:
    """Return in one sentence why a job waits."""
    if picture.queues_total == 0:
        return "It waits because no resource tree has been loaded yet, so no queue is known."
    if picture.queues_of_vo == 0:
        return f"It waits because VO {picture.vo} may use no queue ({picture.queues_total} in all)."
    if not picture.outlooks:
        return _no_queue_summary(picture)
    return _queues_summary(picture)


def _no_queue_summary(picture: WaitingFacts) -> str:
    of_vo = picture.queues_of_vo
    can = f"It waits because none of the {of_vo} queues that VO {picture.vo} may use can run it"
    if of_vo == 1:
        can = f"It waits because the only queue that VO {picture.vo} may use cannot run it"
    blame = next((each for each in picture.exclusions if each.queues_alone), None)
    if blame is not None and blame.parameter == DOWNTIME:
        return f"It waits for a downtime of the {count_text(blame.queues_alone, 'queue')} to pass: {blame.example}."
    if blame is not None and blame.parameter == BAN:
        queues = count_text(blame.queues_alone, "queue")
        banned = "is banned:" if blame.queues_alone == 1 else "are banned, such as"  # by one ban or several
        return f"It waits because the {queues} that could run it {banned} {blame.example}."
    if blame is not None:
        asked = f" {blame.asked}" if blame.asked else ""
        excluded = "excludes it" if of_vo == 1 else f"alone excludes {blame.queues_alone} of them"
        return f"{can}: {blame.parameter}{asked} {excluded}."
    if of_vo == 1:
        return f"{can}: {' and '.join(each.parameter for each in picture.exclusions[:3])} exclude it."
    most = " and ".join(f"{each.parameter} ({each.queues})" for each in picture.exclusions[:3])
    return f"{can}: what excludes most of them is {most}."


def _queues_summary(picture: WaitingFacts) -> str:
    outlooks = picture.outlooks
    can = f"{count_text(len(outlooks), 'queue')} can run it"
    pilots, arriving = sum(each.pilots for each in outlooks), sum(each.pilots_waiting for each in outlooks)
    if pilots == 0:
        coming = f", {count_text(arriving, 'pilot')} on the way" if arriving else ""
        blamed = [each for each in outlooks if each.obstacle and not each.pilots_waiting]
        why = f" ({blamed[0].queue}: {blamed[0].obstacle})" if len(blamed) == len(outlooks) else ""
        return f"It waits for a pilot: {can}, but no pilot is there{coming}{why}."
    there = f"{count_text(pilots, 'pilot')} there"
    free = sum(each.free_slots for each in outlooks)
    if free == 0:
        return f"It waits for a free slot: {can}, {there}, and all their slots are busy{_ahead(picture)}."
    obstacles = [each.obstacle for each in outlooks if each.free_slots and each.obstacle]
    if obstacles and all(each.obstacle for each in outlooks if each.free_slots):
        none_fits = "it does not fit in the free slot" if free == 1 else f"it fits in none of the {free} free slots"
        return f"It waits for a slot that fits: {can}, {there}, but {none_fits} ({obstacles[0]})."
    return f"It waits for its turn: {can}, {there}, {count_text(free, 'free slot')}{_ahead(picture)}."


def _ahead(picture: WaitingFacts) -> str:
    ahead = picture.jobs_ahead
    return f", and {count_text(ahead, 'job')} {'goes' if ahead == 1 else 'go'} first" if ahead else ""
