"""Races: copies of a job run on other sites, and the first good result of any is the job's.

Rules
-----
Only a job that says MayBeRepeated = true is raced, and only while it runs: a job that waits gets any slot that a copy
of it could get. A race is known by the job that the others are copies of, its original; it lasts as long as a copy
lives. The first who ends well wins: its result becomes the original's, and all others are removed. A copy that fails
ends only itself. An original that fails while copies run is left to them, and takes its own failure when none of them
wins; a copy that waits or is held keeps nobody from his failure, for it may do so for ever. Who takes the original out
of the race (removes, holds, edits or reschedules it) ends the race. What a race costs are the core seconds that were
spent since it began by those who did not win; of the original only where a copy was better, for otherwise it would have
spent them anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import FINAL, JobCause, JobState
from pilotage_server.core.leases import AttemptRecord

MAY_BE_REPEATED = "MayBeRepeated"
URGENT = "Urgent"
FLAGS = (MAY_BE_REPEATED, URGENT)
"""Attributes by which a job says that it may be raced, and that this is to be done at once."""

MOST_COPIES = 8
"""More copies of a job never race at once, whatever a racer wants."""

RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED})
"""States of jobs that copies may be made of."""

_FAILURES = frozenset({JobCause.FAILED, JobCause.ATTEMPTS_EXHAUSTED})
_STARTED = RUNS | {JobState.COMPLETING}
_STOPPED = FINAL | {JobState.WAITING, JobState.HELD}
ANEW = frozenset({JobCause.RESCHEDULED, JobCause.EDITED})
"""Causes with which a job begins a new life: it may have as many copies again."""


class Race(NamedTuple):
    """A race of the job `job_id`; `reason` = why it began.

    `copies` = how many were made, the first of them `first_copy`; `attempt` = the original's when the last of them was
    made or, once the race has ended, when it did. `began` = when it did or, where all copies had failed and another was
    made, when it went on. `ended` None = it goes on; `winner` 0 = nobody has won. `lost_core_s` is what those races of
    the job have cost that have ended.
    """

    job_id: int
    vo: str
    group: str
    owner: str
    began: datetime
    reason: str
    copies: int
    first_copy: int
    attempt: int
    ended: datetime | None = None
    winner: int = 0
    outcome: str = ""
    lost_core_s: float = 0.0


class RaceSet(NamedTuple):
    """So many jobs of one submission that may be repeated: `id` is that of the first, `last_id` that of the last."""

    id: int
    last_id: int
    jobs: int
    urgent: bool


class RaceStep(NamedTuple):
    """A step that the end of a race makes a job take; `changes` are fields of its record that change with it."""

    job: JobRecord
    cause: JobCause
    reason: str
    changes: Mapping[str, Any] = {}


class RaceEnd(NamedTuple):
    """How a race ends: who wins (0 = nobody), in words for people, and the steps of those who still take part.

    `won_by` = the copy that has won, None = none has.
    """

    winner: int
    outcome: str
    steps: tuple[RaceStep, ...]
    won_by: JobRecord | None = None


def is_flagged(description: JobDescription, flag: str) -> bool:
    """Whether the job says true under this attribute of FLAGS."""
    return any(value is True and fold(name) == fold(flag) for name, value in description.attributes.items())


def misread_flags(description: JobDescription) -> Iterable[str]:
    """Yield the attributes that are FLAGS by name, and whose values are neither true nor false."""
    flags = folded_set(FLAGS)
    for name, value in description.attributes.items():
        if fold(name) in flags and not isinstance(value, bool):
            yield name


def is_copy_in(job: JobRecord, race: Race) -> bool:
    """Whether the job is a copy in this race, not in a former one of the same job."""
    return job.is_copy and job.race == race.job_id and job.id >= race.first_copy


def why_no_race(description: JobDescription) -> str:
    """Return why a job that says that it is urgent is not raced all the same; "" = it is, or does not say so."""
    if not is_flagged(description, URGENT) or is_flagged(description, MAY_BE_REPEATED):
        return ""
    return f"{URGENT} asks for copies, and there are none of a job that does not say {MAY_BE_REPEATED} = true"


def is_of_present_life(race: Race, last_anew: int) -> bool:
    """Whether copies that were made in the race count for the life that the job is at, though all have ended.

    `last_anew` = the attempt that the job had had when it was last begun ANEW, 0 = never.
    """
    return race.ended is None or race.attempt > last_anew


def cause_in_race(job: JobRecord, cause: JobCause) -> JobCause:
    """Return what comes of the job instead of `cause`, which fails it, as long as it races.

    It fails after all where the race ends with that.
    """
    return JobCause.LEFT_TO_COPIES if job.has_copies and job.is_leased and cause in _FAILURES else cause


def may_end_race(job: JobRecord, causes: Sequence[JobCause]) -> bool:
    """Whether steps of these causes that have brought a racing job where it is may have ended its race."""
    if job.is_copy:
        return job.state in _STOPPED
    return job.state is JobState.RACING or is_out_of_race(job, causes)


def is_out_of_race(original: JobRecord, causes: Sequence[JobCause]) -> bool:
    """Whether steps of these causes have taken the original out of its race."""
    return original.state in FINAL or original.state is JobState.HELD or not ANEW.isdisjoint(causes)


def end_of(original: JobRecord, copies: Sequence[JobRecord], causes: Sequence[JobCause]) -> RaceEnd | None:
    """Return how the race ends in which these take part, None = it goes on.

    `causes` are those of the original's last steps, in order; none where it has made none.
    """
    live = [copy for copy in copies if copy.state not in FINAL]
    if original.state is JobState.DONE:
        return RaceEnd(original.id, "the job itself was the first to end well", _stopped(live, "it was quicker itself"))
    won_by = next((copy for copy in copies if copy.state is JobState.DONE), None)
    if is_out_of_race(original, causes):
        what = f"was {causes[-1]}" if causes else f"is {original.state}"
        return RaceEnd(0, f"the job {what}", _stopped(live, f"that {what}"))
    if won_by is not None:
        outcome = f"copy {won_by.id} was the first to end well, on {won_by.queue}"
        home = RaceStep(original, JobCause.WON, outcome, _brought_home(original, won_by))
        return RaceEnd(won_by.id, outcome, (home, *_stopped(live, f"copy {won_by.id} was quicker")), won_by)
    if original.state is JobState.RACING and not any(copy.state in _STARTED for copy in live):
        failed = RaceStep(original, JobCause.FAILED, original.reason)
        return RaceEnd(0, "nobody ended well", (failed, *_stopped(live, "that has failed, and no copy runs")))
    return None if live else RaceEnd(0, "all copies failed", ())


def _stopped(copies: Iterable[JobRecord], why: str) -> tuple[RaceStep, ...]:
    return tuple(RaceStep(copy, JobCause.REMOVED, f"it lost the race for job {copy.race}: {why}") for copy in copies)


def _brought_home(original: JobRecord, copy: JobRecord) -> dict[str, Any]:
    """Return what the original's record takes from the copy that has won: its last attempt, as one more of its own."""
    return {
        "attempt": original.attempt + 1,
        "pilot_stamp": copy.pilot_stamp,
        "queue": copy.queue,
        "node": copy.node,
        "slot": copy.slot,
        "started": copy.started,
        "exit_code": copy.exit_code,
        "signal": copy.signal,
    }


def why_no_copy(job: JobRecord, description: JobDescription, copies: Iterable[JobRecord]) -> str:
    """Return why no copy of the job may be made now; "" = one may. `copies` are those that there are of it."""
    live = [copy for copy in copies if copy.state not in FINAL]
    waiting = next((copy for copy in live if copy.started is None), None)
    if job.is_copy:
        return f"job {job.id} is a copy of job {job.race} itself"
    if not is_flagged(description, MAY_BE_REPEATED):
        return f"job {job.id} does not say {MAY_BE_REPEATED} = true"
    if job.state not in RUNS:
        return f"job {job.id} is {job.state}; only a job that runs is raced"
    if waiting is not None:
        return f"copy {waiting.id} of job {job.id} has not started yet"
    return f"{MOST_COPIES} copies of job {job.id} race already" if len(live) >= MOST_COPIES else ""


def description_of_copy(description: JobDescription, used: Iterable[str]) -> JobDescription:
    """Return what a copy is to run: the same, but on none of the `used` sites."""
    banned = dict.fromkeys((*description.banned_sites, *sorted(used)))
    return replace(description, count=None, banned_sites=tuple(banned))


def lost_core_s(race: Race, end: RaceEnd, attempts: Iterable[AttemptRecord], now: datetime) -> float:
    """Return what the race has cost in core seconds; `attempts` are those of all who took part, as they were in it."""
    of_copies: list[AttemptRecord] = []
    of_original: list[AttemptRecord] = []
    for attempt in attempts:
        (of_original if attempt.job_id == race.job_id else of_copies).append(attempt)
    if end.won_by is None:
        return cost_so_far(race, of_copies, now)
    won = (end.won_by.id, end.won_by.attempt)
    return cost_so_far(race, [each for each in (*of_copies, *of_original) if each.key != won], now)


def cost_so_far(race: Race, attempts: Iterable[AttemptRecord], now: datetime) -> float:
    """Return the core seconds of these attempts since the race began."""
    return sum(
        each.cpus * max(0.0, ((each.ended or now) - max(each.matched, race.began)).total_seconds()) for each in attempts
    )
