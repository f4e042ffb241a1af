"""FindStragglers: running jobs of sets at their tails and of urgent sets, and the sites where copies could run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from pilotage.resources.eligibility import active_bans
from pilotage.resources.tree import QueueId
from pilotage.values.demand import IdleSlots
from pilotage_server.core.identity import UNBOUND, AgentBounds
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.matching.demand import idle_slots
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.races.races import RaceSet
from pilotage_server.core.races.stragglers import (
    MAX_RUNNING_JOBS,
    MAX_TAIL_JOBS,
    QUICK_SAMPLE_SIZE,
    SAMPLE_SIZE,
    LiveJob,
    LiveJobs,
    OwnerLoad,
    Rivals,
    SetProgress,
    SetReport,
    Straggler,
    first_part,
    is_near_end,
    limit_running,
    owner_loads,
    set_progress,
    spread_ids,
    straggler,
    urgent_part,
)
from pilotage_server.operations.matching.trials import not_throttled, throttles_at
from pilotage_server.operations.races.races import present_races
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import races
from pilotage_server.storage.attempts import load_attempts_of, sites_of
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import load_slots
from pilotage_server.storage.task_queues import load_task_queues

SETS_PER_CALL = 500
"""Sets that one transaction handles."""

_LOSS_PERIOD = timedelta(days=1)
"""The period over which the costs of an owner's races are summed."""

_CACHE_TIME = timedelta(seconds=20)
"""How long cached idle slots are valid: for all calls of a cycle of the racer."""

_FROM_THE_FIRST: Mapping[int, int] = MappingProxyType({})

_IdleSlots = Mapping[QueueId, Sequence[IdleSlots]]


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Sets with jobs that may be raced; there are more after the set `next_after`, 0 = no more."""

    sets: tuple[SetReport, ...]
    next_after: int


class IdleSlotCache:
    """The idle slots of the queues, cached for calls in quick succession: there may be many slots."""

    def __init__(self) -> None:
        self._read: datetime | None = None
        self._idle: _IdleSlots = {}

    def idle(self, transaction: Transaction, state: ServerState) -> _IdleSlots:
        """Return the idle slots of locations that are not throttled, at most _CACHE_TIME old."""
        if self._read is None or not timedelta(0) <= transaction.now - self._read < _CACHE_TIME:
            self._idle = idle_slots(not_throttled(state, load_slots(transaction.session)))
            self._read = transaction.now
        return self._idle


def find_stragglers(
    transaction: Transaction,
    state: ServerState,
    after_set: int,
    glance: IdleSlotCache | None = None,
    after_jobs: Mapping[int, int] = _FROM_THE_FIRST,
    most_running: int = MAX_RUNNING_JOBS,
    bounds: AgentBounds = UNBOUND,
) -> Stragglers:
    """Return the next sets that are urgent or near their ends and have running jobs.

    `glance` None = the free slots for copies are not needed. Of large urgent sets the first jobs are reported, and
    those after the job in `after_jobs`, by set id. The sets have at most `most_running` running jobs together, except
    that the first set is always reported. Only jobs of VOs in the bounds are described.
    """
    page = races.next_sets(transaction.session, after_set, SETS_PER_CALL)
    first = _candidate_sets(transaction, page)
    # Details are read only of the sets of this answer; the other sets come with the next call.
    sets = limit_running(page, {of: first_part(jobs) for of, jobs in first.items()}, most_running)
    parts = {of: _part(transaction, of, first[of], after_jobs.get(of.id, 0)) for of in sets if of in first}
    looked_at = {of: part for of, part in parts.items() if part.is_reported}
    sets = limit_running(sets, looked_at, most_running)
    live = {of: looked_at[of] for of in sets if of in looked_at}
    figures = _figures(
        transaction, [of for of in live if not of.urgent and not any(job.waits for job in live[of].jobs)]
    )
    found_running = load_jobs(transaction.session, [job.id for part in live.values() for job in part.jobs if job.runs])
    running = {id_: job for id_, job in found_running.items() if bounds.has_vo(job.vo)}
    described = _described(transaction, running, _CandidateSites(transaction, state, running.values(), glance))
    next_after = sets[-1].id if len(sets) < len(page) or len(page) == SETS_PER_CALL else 0
    found = (
        SetReport(
            of,
            figures.get(of.id, SetProgress()),
            sum(job.waits for job in part.jobs),
            tuple(described[job.id] for job in part.jobs if job.id in described),
            part.next_after_job,
        )
        for of, part in live.items()
    )
    return Stragglers(tuple(found), next_after)


def race_loads(transaction: Transaction, bounds: AgentBounds = UNBOUND) -> tuple[OwnerLoad, ...]:
    """Return the live copies and the recent costs of races, by owner of the VOs in the bounds."""
    open_races = races.load_all_open(transaction.session)
    copies = [copy for same in races.load_rivals(transaction.session, open_races.values()).values() for copy in same]
    attempts = load_attempts_of(transaction.session, [copy.id for copy in copies])
    lost = races.sum_losses_since(transaction.session, transaction.now - _LOSS_PERIOD)
    loads = owner_loads(lost, open_races, copies, attempts, transaction.now)
    return tuple(load for load in loads if bounds.has_vo(load.account.vo))


def _candidate_sets(transaction: Transaction, sets: Sequence[RaceSet]) -> dict[RaceSet, Sequence[LiveJob]]:
    """Return the first live jobs of the urgent sets and of those near their ends."""
    glances = races.samples(
        transaction.session, {of.id: spread_ids(of, QUICK_SAMPLE_SIZE) for of in sets if not of.urgent}
    )
    near = [of for of in sets if of.urgent or is_near_end(glances[of.id])]
    live = races.live_jobs(transaction.session, near)
    return {of: live[of.id] for of in near if len(live[of.id]) <= MAX_TAIL_JOBS or of.urgent}


def _part(transaction: Transaction, of: RaceSet, first: Sequence[LiveJob], after_job: int) -> LiveJobs:
    """Return the reported live jobs of a set: all, or of a large urgent set the first and some of the others."""
    if len(first) <= MAX_TAIL_JOBS:
        return first_part(first)
    later = races.live_jobs_after(transaction.session, of, max(after_job, first[MAX_TAIL_JOBS - 1].id))
    return urgent_part(first, later)


def _figures(transaction: Transaction, sets: Iterable[RaceSet]) -> dict[int, SetProgress]:
    """Return the progress of these sets, by id."""
    asked = {of.id: spread_ids(of, SAMPLE_SIZE) for of in sets}
    return {set_id: set_progress(sample) for set_id, sample in races.samples(transaction.session, asked).items()}


def _described(
    transaction: Transaction, running: Mapping[int, JobRecord], candidate_sites: _CandidateSites
) -> dict[int, Straggler]:
    """Return the reports on running jobs, by id."""
    present = present_races(transaction, running)
    copies = races.load_rivals(transaction.session, present.values())
    rivals = {id_: Rivals(race.copies, copies.get(id_, ())) for id_, race in present.items()}
    sites = sites_of(transaction.session, [*running, *(each.id for same in copies.values() for each in same)])
    found: dict[int, Straggler] = {}
    for job in running.values():
        job_copies = rivals.get(job.id, Rivals())
        used = {site for each in (job, *job_copies.copies) for site in sites.get(each.id, ())}
        cpus = candidate_sites.task_queues[job.task_queue_id].traits.amounts.cpus
        found[job.id] = straggler(
            job, cpus, job_copies, candidate_sites.sites(job.task_queue_id), used, transaction.now
        )
    return found


class _CandidateSites:
    """The sites that the task queues of jobs may run at now."""

    def __init__(
        self, transaction: Transaction, state: ServerState, jobs: Iterable[JobRecord], glance: IdleSlotCache | None
    ) -> None:
        self.task_queues: Mapping[int, TaskQueue] = {
            each.id: each for each in load_task_queues(transaction.session, {job.task_queue_id for job in jobs})
        }
        self._access = state.queue_access
        self._open = [
            queue
            for queue in state.tree.queues
            if self.task_queues
            and not active_bans(state.bans, queue, transaction.now)
            and not throttles_at(state, queue)
        ]
        self._idle: _IdleSlots = glance.idle(transaction, state) if glance is not None and self.task_queues else {}
        self._sites: dict[int, dict[str, int]] = {}

    def sites(self, task_queue_id: int) -> dict[str, int]:
        """Return the sites that the jobs of a task queue can go to, with the number of idle slots that fit."""
        if task_queue_id not in self._sites:
            sites: Counter[str] = Counter()
            task_queue = self.task_queues[task_queue_id]
            amounts = task_queue.traits.amounts
            for queue in self._open:
                if self._access.admits(task_queue, queue):
                    idle = self._idle.get(queue, ())
                    sites[queue.site] += sum(each.count for each in idle if amounts.fits_in(each.free))
            self._sites[task_queue_id] = dict(sites)
        return self._sites[task_queue_id]
