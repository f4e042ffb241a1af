"""Progress and stragglers of sets of repeatable jobs: the figures that the racer decides by.

Rules
-----
A set is judged by a sample of its jobs, so that the cost does not depend on its size. The racer decides about races.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.core.races.races import RACEABLE_STATES, Race, RaceSet, cost_so_far

SAMPLE_SIZE = 500
"""Jobs in the sample of a set."""

QUICK_SAMPLE_SIZE = 20
"""Jobs in the first sample, which shows whether a set may be near its end."""

MAX_TAIL_JOBS = 200
"""A set with more live jobs is not at its tail, however large it is.

Of an urgent set the first jobs up to this number are always reported, and as many others each time.
"""

MAX_RUNNING_JOBS = 10_000
"""Running jobs in one answer: each comes with the sites for its copies."""


Sampled = tuple[JobState, timedelta]
"""The state of a sampled job, and how long it ran."""

_WAITING = frozenset({JobState.RECEIVED, JobState.WAITING, JobState.MATCHED})


class LiveJob(NamedTuple):
    """A live job of a set."""

    id: int
    state: JobState

    @property
    def runs(self) -> bool:
        """Whether copies may be made of it."""
        return self.state in RACEABLE_STATES

    @property
    def waits(self) -> bool:
        """Whether it still needs a slot; held jobs, and failed ones with copies, do not delay the tail."""
        return self.state in _WAITING


class LiveJobs(NamedTuple):
    """The reported live jobs of a set; the next report goes on after `next_after_job`, 0 = after the first ones."""

    jobs: Sequence[LiveJob] = ()
    next_after_job: int = 0

    @property
    def is_reported(self) -> bool:
        """Whether the racer needs the set: a job runs, or the next report goes on from here."""
        return bool(self.next_after_job) or any(job.runs for job in self.jobs)


class SetProgress(NamedTuple):
    """The progress of a set: of `sampled` jobs `done` have ended well, 95 % of those within `p95`."""

    sampled: int = 0
    done: int = 0
    p95: timedelta = timedelta(0)


class Rivals(NamedTuple):
    """The number of copies made of a job since its last restart, and those that the database still has."""

    made: int = 0
    copies: Sequence[JobRecord] = ()


class OtherSite(NamedTuple):
    """A site where a copy could run, and the number of free slots there that fit."""

    site: str
    free_slots: int


class Straggler(NamedTuple):
    """A running job of a repeatable set, with its copies and the sites where another one could run."""

    job: JobRecord
    cpus: int
    running: timedelta
    copies_made: int
    copy_waits: bool
    sites: tuple[OtherSite, ...]


class OwnerLoad(NamedTuple):
    """The number of live copies of an owner's jobs, and the recent cost of the owner's races."""

    account: Account
    copies: int
    lost_core_s: float


class SetReport(NamedTuple):
    """A set with its progress, the number of its waiting jobs, and its running jobs.

    The progress is left out while some jobs wait. For a large urgent set, `next_after_job` is where the next report
    goes on, 0 = after the first ones, or the set is not large.
    """

    of: RaceSet
    figures: SetProgress
    waiting: int
    stragglers: tuple[Straggler, ...]
    next_after_job: int = 0


def spread_ids(of: RaceSet, most: int) -> list[int]:
    """Return at most `most` ids, evenly spread over the ids of the set."""
    step = max(1, -(-(of.last_id - of.id + 1) // most))
    return list(range(of.id, of.last_id + 1, step))


def set_progress(sample: Sequence[Sampled]) -> SetProgress:
    """Return the progress of a sample; removed jobs do not count."""
    wanted = sum(state is not JobState.REMOVED for state, _ in sample)
    ran = sorted(length for state, length in sample if state is JobState.DONE)
    if not ran:
        return SetProgress(wanted)
    return SetProgress(wanted, len(ran), ran[-(-95 * len(ran) // 100) - 1])


def is_near_end(glance: Sequence[Sampled]) -> bool:
    """Whether at least half of the first sample has ended."""
    return 2 * sum(state in FINAL for state, _ in glance) >= len(glance)


def first_part(first: Sequence[LiveJob]) -> LiveJobs:
    """Return the live jobs of a set that are always reported: the first ones, or all."""
    return LiveJobs(first[:MAX_TAIL_JOBS])


def urgent_part(first: Sequence[LiveJob], later: Sequence[LiveJob]) -> LiveJobs:
    """Return the reported live jobs of an urgent set: MAX_TAIL_JOBS each of the first ones and of the later ones."""
    next_after_job = later[MAX_TAIL_JOBS - 1].id if len(later) > MAX_TAIL_JOBS else 0
    return LiveJobs((*first[:MAX_TAIL_JOBS], *later[:MAX_TAIL_JOBS]), next_after_job)


def limit_running(sets: Sequence[RaceSet], live: Mapping[RaceSet, LiveJobs], most: int) -> Sequence[RaceSet]:
    """Return the first sets, as many as have at most `most` running jobs together, but at least one."""
    running = list(accumulate(sum(job.runs for job in live.get(of, LiveJobs()).jobs) for of in sets))
    return sets[: max(1, bisect_right(running, most))]


def straggler(
    job: JobRecord,
    cpus: int,
    rivals: Rivals,
    sites: Mapping[str, int],
    used: Iterable[str],
    now: datetime,
) -> Straggler:
    """Return the report on a running job.

    `sites` = where jobs like it can go, with free slots; `used` = the sites of the job and its copies.
    """
    assert job.started is not None, "it runs"
    live = [copy for copy in rivals.copies if copy.state not in FINAL]
    used_sites = frozenset(used)
    return Straggler(
        job,
        cpus,
        running=max(timedelta(0), now - job.started),
        copies_made=rivals.made,
        copy_waits=any(copy.started is None for copy in live),
        sites=tuple(OtherSite(site, free) for site, free in sorted(sites.items()) if site not in used_sites),
    )


def owner_loads(
    lost_core_s: Mapping[Account, float],
    races: Mapping[int, Race],
    copies: Sequence[JobRecord],
    attempts: Iterable[AttemptRecord],
    now: datetime,
) -> tuple[OwnerLoad, ...]:
    """Return the live copies and the costs of races, by owner.

    `lost_core_s` = the costs of ended races. `races` are the open ones, with their `copies` and the `attempts` of
    these. The costs of earlier races of a job count with its open race.
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
