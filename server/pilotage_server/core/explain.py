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
from pilotage.job_description import Value
from pilotage.resources.eligibility import BAN, DOWNTIME, Eligible, NoAccess, Refusal, Refused, Verdict
from pilotage.resources.tree import QueueId
from pilotage.text import fold
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
        Exclusion(tally.first.parameter, asked_text(tally.first.asked), tally.queues, tally.alone, tally.example)
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


def asked_text(asked: Value | None) -> str:
    """Return the required value as text for people; "" = none."""
    if asked is None:
        return ""
    return ", ".join(str(each) for each in asked) if isinstance(asked, tuple) else str(asked)


class Obstacle(NamedTuple):
    """A reason why one slot does not fit a job; `seen` = the values of this slot, "" = none."""

    why: str
    seen: str = ""


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
    seen = next(each.seen for obstacles in obstacles_of_slots for each in obstacles if each.why == most)
    text = f"{most} ({seen})" if seen else most
    return text if len(obstacles_of_slots) == 1 else f"{text} ({count} of {len(obstacles_of_slots)} free slots)"


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
        return f"It waits because VO {picture.vo} may use none of the {picture.queues_total} queues."
    if not picture.outlooks:
        return _no_queue_summary(picture)
    return _queues_summary(picture)


def _no_queue_summary(picture: WaitingFacts) -> str:
    of_vo = picture.queues_of_vo
    can = f"It waits because none of the {of_vo} queues that VO {picture.vo} may use can run it"
    blame = next((each for each in picture.exclusions if each.queues_alone), None)
    if blame is not None and blame.parameter == DOWNTIME:
        return f"It waits for a downtime of the {count_text(blame.queues_alone, 'queue')} to pass: {blame.example}."
    if blame is not None and blame.parameter == BAN:
        queues = count_text(blame.queues_alone, "queue")
        banned = "is banned:" if blame.queues_alone == 1 else "are banned, such as"  # by one ban or several
        return f"It waits because the {queues} that could run it {banned} {blame.example}."
    if blame is not None:
        asked = f" {blame.asked}" if blame.asked else ""
        return f"{can}: {blame.parameter}{asked} alone excludes {blame.queues_alone} of them."
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
        none_fits = f"it fits in none of the {count_text(free, 'free slot')}"
        return f"It waits for a slot that fits: {can}, {there}, but {none_fits} ({obstacles[0]})."
    return f"It waits for its turn: {can}, {there}, {count_text(free, 'free slot')}{_ahead(picture)}."


def _ahead(picture: WaitingFacts) -> str:
    ahead = picture.jobs_ahead
    return f", and {count_text(ahead, 'job')} {'goes' if ahead == 1 else 'go'} first" if ahead else ""


def count_text(count: int, noun: str) -> str:
    """Return "1 queue" or "3 queues"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
