"""How far sets of jobs are that may be repeated, and what of them runs still: the figures that a racer decides by.

Rules
-----
A set is judged by a sample of its jobs, so that a look costs the same whether it has a hundred jobs or millions.
Whether to race is the racer's to decide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from pilotage_server.core.accounting import Account
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import FINAL, JobState
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.core.races import RUNS, Race, RaceSet, cost_so_far

MOST_LOOKED_AT = 500
"""Jobs in the sample of a set."""

GLANCE = 20
"""Jobs by which it is seen first whether a set may be near its end."""

LONGEST_TAIL = 200
"""A set of which more jobs have not ended is not at its tail, whatever part of it that is.

Of an urgent one so many are looked at in any case, and so many others in each look.
"""

MOST_RUNNING = 10_000
"""Jobs that run in one answer: each comes with the sites for its copies."""


Sampled = tuple[JobState, timedelta]
"""Where a job of a sample is in its life, and how long it ran."""

_WAITING = frozenset({JobState.RECEIVED, JobState.WAITING, JobState.MATCHED})


class LiveJob(NamedTuple):
    """A job of a set that has not ended."""

    id: int
    state: JobState

    @property
    def runs(self) -> bool:
        """Whether copies may be made of it."""
        return self.state in RUNS

    @property
    def waits(self) -> bool:
        """Whether it is still to get a slot: one that is held, or left to its copies, keeps no tail from its end."""
        return self.state in _WAITING


class LivePart(NamedTuple):
    """The jobs of a set that are looked at; the next look goes on after `next_after_job`, 0 = after the first ones."""

    jobs: Sequence[LiveJob] = ()
    next_after_job: int = 0

    @property
    def is_told(self) -> bool:
        """Whether a racer is to hear of it: something runs, or it is to go on from here."""
        return bool(self.next_after_job) or any(job.runs for job in self.jobs)


class Figures(NamedTuple):
    """How far a set is: of `sampled` jobs `done` have ended well, 95 of 100 of those within `p95`."""

    sampled: int = 0
    done: int = 0
    p95: timedelta = timedelta(0)


class Rivals(NamedTuple):
    """So many copies of a job were made in its present life, and those of which the database knows still."""

    made: int = 0
    copies: Sequence[JobRecord] = ()


class OtherSite(NamedTuple):
    """A site where a copy could run, and how many slots there would take it now."""

    site: str
    free_slots: int


class Straggler(NamedTuple):
    """A job that runs, of a set that may be raced, with its copies and where one more could run."""

    job: JobRecord
    cpus: int
    running: timedelta
    copies_made: int
    copy_waits: bool
    sites: tuple[OtherSite, ...]


class OwnerLoad(NamedTuple):
    """So many copies of an owner's jobs have not ended; `lost_core_s` = what his races have cost of late."""

    account: Account
    copies: int
    lost_core_s: float


class SetLook(NamedTuple):
    """A set, how far it is, how many of its jobs wait for a slot, and those that run.

    How far it is is not looked at while some wait. Of an urgent set that is too large for one look the next look goes
    on after job `next_after_job`, 0 = after the first ones, or the set is not so large.
    """

    of: RaceSet
    figures: Figures
    waiting: int
    stragglers: tuple[Straggler, ...]
    next_after_job: int = 0


def spread_ids(of: RaceSet, most: int) -> list[int]:
    """Return at most so many ids, evenly spread over those that the set's jobs may have."""
    step = max(1, -(-(of.last_id - of.id + 1) // most))
    return list(range(of.id, of.last_id + 1, step))


def figures_of(sample: Sequence[Sampled]) -> Figures:
    """Return the figures of a sample; jobs that were removed are no part of their set any more."""
    wanted = sum(state is not JobState.REMOVED for state, _ in sample)
    ran = sorted(length for state, length in sample if state is JobState.DONE)
    if not ran:
        return Figures(wanted)
    return Figures(wanted, len(ran), ran[-(-95 * len(ran) // 100) - 1])


def is_near_its_end(glance: Sequence[Sampled]) -> bool:
    """Whether half of the jobs at which one has glanced have ended: the others are not worth a look."""
    return 2 * sum(state in FINAL for state, _ in glance) >= len(glance)


def first_part(first: Sequence[LiveJob]) -> LivePart:
    """Return the part of a set that is looked at in any case: so many of its first jobs, or all."""
    return LivePart(first[:LONGEST_TAIL])


def urgent_part(first: Sequence[LiveJob], later: Sequence[LiveJob]) -> LivePart:
    """Return the part of an urgent set that is looked at: of its first jobs and of later ones LONGEST_TAIL each."""
    next_after_job = later[LONGEST_TAIL - 1].id if len(later) > LONGEST_TAIL else 0
    return LivePart((*first[:LONGEST_TAIL], *later[:LONGEST_TAIL]), next_after_job)


def few_enough(sets: Sequence[RaceSet], live: Mapping[RaceSet, LivePart], most: int) -> Sequence[RaceSet]:
    """Return the first of the sets, as many as have at most so many jobs that run, but one at least."""
    running = list(accumulate(sum(job.runs for job in live.get(of, LivePart()).jobs) for of in sets))
    return sets[: max(1, bisect_right(running, most))]


def straggler(
    job: JobRecord,
    cpus: int,
    rivals: Rivals,
    sites: Mapping[str, int],
    used: Iterable[str],
    now: datetime,
) -> Straggler:
    """Return what a racer has to know of a job that runs.

    `sites` = where jobs like it can go, with free slots; `used` = where it and its copies were.
    """
    assert job.started is not None, "it runs"
    live = [copy for copy in rivals.copies if copy.state not in FINAL]
    were = frozenset(used)
    return Straggler(
        job,
        cpus,
        running=max(timedelta(0), now - job.started),
        copies_made=rivals.made,
        copy_waits=any(copy.started is None for copy in live),
        sites=tuple(OtherSite(site, free) for site, free in sorted(sites.items()) if site not in were),
    )


def loads_of(
    lost_core_s: Mapping[Account, float],
    races: Mapping[int, Race],
    copies: Sequence[JobRecord],
    attempts: Iterable[AttemptRecord],
    now: datetime,
) -> tuple[OwnerLoad, ...]:
    """Return what the races of each owner hold now and have cost, by owner.

    `lost_core_s` is what races have cost that have ended; `races` are those that go on, with their `copies` and the
    `attempts` of these. What a job's former races have cost counts with the one that goes on.
    """
    lost = defaultdict[Account, float](float, lost_core_s)
    for race in races.values():
        lost[Account(race.vo, race.group, race.owner)] += race.lost_core_s
    live = Counter(_owner(copy) for copy in copies if copy.state not in FINAL)
    by_id = {copy.id: copy for copy in copies}
    for attempt in attempts:
        copy = by_id[attempt.job_id]
        lost[_owner(copy)] += cost_so_far(races[copy.race], [attempt], now)
    return tuple(OwnerLoad(owner, live[owner], lost[owner]) for owner in sorted({*lost, *live}))


def _owner(job: JobRecord) -> Account:
    return Account(job.vo, job.group, job.owner)
