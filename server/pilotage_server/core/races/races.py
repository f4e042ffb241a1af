"""Races: copies of a job run on other sites, and the first good result is the job's.

Rules
-----
- Only a job with MayBeRepeated = true is raced, and only while it runs: a waiting job gets any slot that a copy could.
- The id of a race is that of its original, the job that the others are copies of. A race lasts while a copy lives.
- The first attempt that ends well wins: its result becomes the original's, and all others are removed.
- A copy that fails ends only itself. An original that fails while copies run waits for them (RACING) and fails if none
  of them wins. A queued or held copy does not keep the race open: it may never start.
- A copy is never retried. An original that is retried waits, or runs, beside its copies.
- Removing, holding, editing or rescheduling the original ends the race.
- The cost of a race is the core seconds since its begin of all that did not win; those of the original count only where
  a copy won, since it would have spent them anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pilotage.job_description import JobDescription, without_exit_policy
from pilotage.text import fold, folded_set
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobCause, JobState

MAY_BE_REPEATED = "MayBeRepeated"
URGENT = "Urgent"
FLAGS = (MAY_BE_REPEATED, URGENT)
"""Attributes by which a job allows races, and asks for one at once."""

MAX_RACE_COPIES = 8
"""The maximum number of live copies of a job."""

RACEABLE_STATES = frozenset({JobState.RUNNING, JobState.SUSPENDED})
"""States of jobs that copies may be made of."""

_FAILURES = frozenset({JobCause.FAILED, JobCause.ATTEMPTS_EXHAUSTED})
_STARTED = RACEABLE_STATES | {JobState.COMPLETING}
_STOPPED = FINAL | {JobState.WAITING, JobState.HELD}
RESTART_CAUSES = frozenset({JobCause.RESCHEDULED, JobCause.EDITED})
"""Causes that restart a job: it may have as many copies again."""


class Race(NamedTuple):
    """A race of the job `job_id`; `reason` = why it began.

    `copies` = how many were made, the first of them `first_copy`. `attempt` = the original's attempt when the last copy
    was made or, once the race has ended, at its end. `began` = its begin or, where all copies had failed and another
    one was made, the time of that. `ended` None = it is open; `winner` 0 = none. `lost_core_s` = the cost of the ended
    races of the job.
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
    """The repeatable jobs of one submission: their number, and the ids of the first (`id`) and the last."""

    id: int
    last_id: int
    jobs: int
    urgent: bool


class RaceStep(NamedTuple):
    """A transition of a job at the end of a race; `changes` are fields of its record that change with it."""

    job: JobRecord
    cause: JobCause
    reason: str
    changes: Mapping[str, Any] = {}


class RaceEnd(NamedTuple):
    """The end of a race: the winner (0 = none), the outcome as text for people, and the steps of all participants.

    `winning_copy` None = no copy has won.
    """

    winner: int
    outcome: str
    steps: tuple[RaceStep, ...]
    winning_copy: JobRecord | None = None


def is_flagged(description: JobDescription, flag: str) -> bool:
    """Whether this attribute of FLAGS is true for the job."""
    return any(value is True and fold(name) == fold(flag) for name, value in description.attributes.items())


def invalid_flags(description: JobDescription) -> Iterable[str]:
    """Yield the attributes named in FLAGS whose values are neither true nor false."""
    flags = folded_set(FLAGS)
    for name, value in description.attributes.items():
        if fold(name) in flags and not isinstance(value, bool):
            yield name


def is_copy_in(job: JobRecord, race: Race) -> bool:
    """Whether the job is a copy in this race, not in an earlier race of the same job."""
    return job.is_race_copy and job.race == race.job_id and job.id >= race.first_copy


def race_refusal(description: JobDescription) -> str:
    """Return why an urgent job is not raced; "" = it is raced, or it is not urgent."""
    if not is_flagged(description, URGENT) or is_flagged(description, MAY_BE_REPEATED):
        return ""
    return f"{URGENT} asks for copies, but a job gets none without {MAY_BE_REPEATED} = true"


def is_current(race: Race, last_restart: int) -> bool:
    """Whether the copies of the race, even if all have ended, count for the job since its last restart.

    `last_restart` = the attempt of the job at its last restart, 0 = never.
    """
    return race.ended is None or race.attempt > last_restart


def cause_in_race(job: JobRecord, cause: JobCause) -> JobCause:
    """Return the cause that replaces `cause`, which fails the job, as long as it races.

    The job fails after all when the race ends without a winner.
    """
    return JobCause.LEFT_TO_COPIES if job.has_race_copies and job.is_leased and cause in _FAILURES else cause


def may_end_race(job: JobRecord, causes: Sequence[JobCause]) -> bool:
    """Whether the last transitions of a racing job, with these causes, may have ended its race."""
    if job.is_race_copy:
        return job.state in _STOPPED
    return job.state is JobState.RACING or is_out_of_race(job, causes)


def is_out_of_race(original: JobRecord, causes: Sequence[JobCause]) -> bool:
    """Whether transitions with these causes have taken the original out of its race."""
    return original.state in FINAL or original.state is JobState.HELD or not RESTART_CAUSES.isdisjoint(causes)


def race_end(original: JobRecord, copies: Sequence[JobRecord], causes: Sequence[JobCause]) -> RaceEnd | None:
    """Return the end of the race of these jobs, None = it goes on.

    `causes` are those of the original's last transitions, in order.
    """
    live = [copy for copy in copies if copy.state not in FINAL]
    if original.state is JobState.DONE:
        return RaceEnd(
            original.id, "the job itself was the first to end well", _removal_steps(live, "it was quicker itself")
        )
    won_by = next((copy for copy in copies if copy.state is JobState.DONE), None)
    if is_out_of_race(original, causes):
        what = f"was {causes[-1]}" if causes else f"is {original.state}"
        return RaceEnd(0, f"the job {what}", _removal_steps(live, f"that {what}"))
    if won_by is not None:
        outcome = f"copy {won_by.id} was the first to end well, on {won_by.queue}"
        home = RaceStep(original, JobCause.WON, outcome, _winner_fields(original, won_by))
        return RaceEnd(won_by.id, outcome, (home, *_removal_steps(live, f"copy {won_by.id} was quicker")), won_by)
    if original.state is JobState.RACING and not any(copy.state in _STARTED for copy in live):
        failed = RaceStep(original, JobCause.FAILED, original.reason)
        return RaceEnd(0, "no attempt ended well", (failed, *_removal_steps(live, "that has failed, and no copy runs")))
    return None if live else RaceEnd(0, "all copies failed", ())


def _removal_steps(copies: Iterable[JobRecord], why: str) -> tuple[RaceStep, ...]:
    return tuple(RaceStep(copy, JobCause.REMOVED, f"it lost the race for job {copy.race}: {why}") for copy in copies)


def _winner_fields(original: JobRecord, copy: JobRecord) -> dict[str, Any]:
    """Return the fields that the original takes over from the winning copy: its last attempt becomes the job's."""
    return {
        "attempt": original.next_attempt,
        "pilot_stamp": copy.pilot_stamp,
        "queue": copy.queue,
        "node": copy.node,
        "slot": copy.slot,
        "started": copy.started,
        "exit_code": copy.exit_code,
        "signal": copy.signal,
    }


def copy_refusal(job: JobRecord, description: JobDescription, copies: Iterable[JobRecord]) -> str:
    """Return why no copy of the job may be made now; "" = one may. `copies` are its existing copies."""
    live = [copy for copy in copies if copy.state not in FINAL]
    waiting = next((copy for copy in live if copy.started is None), None)
    if job.is_race_copy:
        return f"job {job.id} is itself a copy of job {job.race}"
    if not is_flagged(description, MAY_BE_REPEATED):
        return f"job {job.id} does not have {MAY_BE_REPEATED} = true"
    if job.max_starts:
        return f"job {job.id} has max_starts: a copy would be another start"
    if job.state not in RACEABLE_STATES:
        return f"job {job.id} is {job.state}; only a running job is raced"
    if waiting is not None:
        return f"copy {waiting.id} of job {job.id} has not started yet"
    return f"{MAX_RACE_COPIES} copies of job {job.id} race already" if len(live) >= MAX_RACE_COPIES else ""


def copy_description(description: JobDescription, used: Iterable[str]) -> JobDescription:
    """Return the description of a copy: the same, but with the `used` sites banned and without retries."""
    banned = dict.fromkeys((*description.banned_sites, *sorted(used)))
    return replace(without_exit_policy(description), count=None, banned_sites=tuple(banned))


def lost_core_s(race: Race, end: RaceEnd, attempts: Iterable[AttemptRecord], now: datetime) -> float:
    """Return the cost of the race in core seconds; `attempts` are those of all participants during the race."""
    of_copies: list[AttemptRecord] = []
    of_original: list[AttemptRecord] = []
    for attempt in attempts:
        (of_original if attempt.job_id == race.job_id else of_copies).append(attempt)
    if end.winning_copy is None:
        return cost_so_far(race, of_copies, now)
    won = (end.winning_copy.id, end.winning_copy.attempt)
    return cost_so_far(race, [each for each in (*of_copies, *of_original) if each.key != won], now)


def cost_so_far(race: Race, attempts: Iterable[AttemptRecord], now: datetime) -> float:
    """Return the core seconds of these attempts since the race began."""
    return sum(
        each.cpus * max(0.0, ((each.ended or now) - max(each.matched, race.began)).total_seconds()) for each in attempts
    )
