"""FindStragglers: what runs of the sets that are at their tails and of urgent ones, and where copies could run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from pilotage.bans import active_bans
from pilotage.resource_tree import QueueId
from pilotage_server.core.demand import IdleSlots, idle_slots
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.races import RaceSet
from pilotage_server.core.stragglers import (
    GLANCE,
    LONGEST_TAIL,
    MOST_LOOKED_AT,
    MOST_RUNNING,
    Figures,
    LiveJob,
    LivePart,
    OwnerLoad,
    Rivals,
    SetLook,
    Straggler,
    few_enough,
    figures_of,
    first_part,
    is_near_its_end,
    loads_of,
    spread_ids,
    straggler,
    urgent_part,
)
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.races import present_races
from pilotage_server.operations.trials import closed_at, not_throttled
from pilotage_server.operations.world import World
from pilotage_server.storage import race_sets, races
from pilotage_server.storage.attempts import load_attempts_of, sites_of
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.slots import load_slots
from pilotage_server.storage.task_queues import load_task_queues

SETS_IN_A_CALL = 500
"""So many sets are looked at in one transaction."""

_OF_LATE = timedelta(days=1)
"""For so long an owner's losses stand against him."""

_GLANCE_HOLDS = timedelta(seconds=20)
"""For so long a glance at free slots serves: for all the calls of a racer's round."""

_FROM_THE_FIRST: Mapping[int, int] = MappingProxyType({})

_IdleSlots = Mapping[QueueId, Sequence[IdleSlots]]


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Sets of which something may be raced; there are more after `next_after`, 0 = none."""

    sets: tuple[SetLook, ...]
    next_after: int


class SlotGlance:
    """What is free at the queues, read once for calls that follow each other: there may be many slots."""

    def __init__(self) -> None:
        self._read: datetime | None = None
        self._idle: _IdleSlots = {}

    def idle(self, unit: Unit, world: World) -> _IdleSlots:
        """Return what slots are idle that get more than single jobs, as they were a short while ago."""
        if self._read is None or not timedelta(0) <= unit.now - self._read < _GLANCE_HOLDS:
            self._idle = idle_slots(not_throttled(world, load_slots(unit.session)))
            self._read = unit.now
        return self._idle


def find_stragglers(
    unit: Unit,
    world: World,
    after_set: int,
    glance: SlotGlance | None = None,
    after_jobs: Mapping[int, int] = _FROM_THE_FIRST,
    most_running: int = MOST_RUNNING,
) -> Stragglers:
    """Return the next of the sets that are urgent, or near their ends, and of which something runs.

    `glance` None = nobody asks what is free for copies. Of urgent sets that are too large for one look the first jobs
    are looked at, and those after the ones in `after_jobs`, by set. The sets have at most `most_running` jobs that run,
    but for the first, which is told in any case.
    """
    page = race_sets.next_sets(unit.session, after_set, SETS_IN_A_CALL)
    first = _worth_a_look(unit, page)
    # More is asked only of sets that are told: what comes later of the others is read with them.
    sets = few_enough(page, {of: first_part(jobs) for of, jobs in first.items()}, most_running)
    parts = {of: _part(unit, of, first[of], after_jobs.get(of.id, 0)) for of in sets if of in first}
    looked_at = {of: part for of, part in parts.items() if part.is_told}
    sets = few_enough(sets, looked_at, most_running)
    live = {of: looked_at[of] for of in sets if of in looked_at}
    figures = _figures(unit, [of for of in live if not of.urgent and not any(job.waits for job in live[of].jobs)])
    running = load_jobs(unit.session, [job.id for part in live.values() for job in part.jobs if job.runs])
    described = _described(unit, running, _Places(unit, world, running.values(), glance))
    next_after = sets[-1].id if len(sets) < len(page) or len(page) == SETS_IN_A_CALL else 0
    found = (
        SetLook(
            of,
            figures.get(of.id, Figures()),
            sum(job.waits for job in part.jobs),
            tuple(described[job.id] for job in part.jobs if job.id in described),
            part.next_after_job,
        )
        for of, part in live.items()
    )
    return Stragglers(tuple(found), next_after)


def race_loads(unit: Unit) -> tuple[OwnerLoad, ...]:
    """Return what the races of each owner hold now and have cost of late."""
    open_races = races.load_all_open(unit.session)
    copies = [copy for same in races.load_rivals(unit.session, open_races.values()).values() for copy in same]
    attempts = load_attempts_of(unit.session, [copy.id for copy in copies])
    lost = races.sum_losses_since(unit.session, unit.now - _OF_LATE)
    return loads_of(lost, open_races, copies, attempts, unit.now)


def _worth_a_look(unit: Unit, sets: Sequence[RaceSet]) -> dict[RaceSet, Sequence[LiveJob]]:
    """Return the first of the jobs that have not ended of the urgent sets, and of those near their ends."""
    glances = race_sets.samples(unit.session, {of.id: spread_ids(of, GLANCE) for of in sets if not of.urgent})
    near = [of for of in sets if of.urgent or is_near_its_end(glances[of.id])]
    live = race_sets.live_jobs(unit.session, near)
    return {of: live[of.id] for of in near if len(live[of.id]) <= LONGEST_TAIL or of.urgent}


def _part(unit: Unit, of: RaceSet, first: Sequence[LiveJob], after_job: int) -> LivePart:
    """Return the jobs of a set that are looked at: all, or of a large urgent one its first and some of the others."""
    if len(first) <= LONGEST_TAIL:
        return first_part(first)
    later = race_sets.live_jobs_after(unit.session, of, max(after_job, first[LONGEST_TAIL - 1].id))
    return urgent_part(first, later)


def _figures(unit: Unit, sets: Iterable[RaceSet]) -> dict[int, Figures]:
    """Return how far these sets are, by their ids."""
    asked = {of.id: spread_ids(of, MOST_LOOKED_AT) for of in sets}
    return {set_id: figures_of(sample) for set_id, sample in race_sets.samples(unit.session, asked).items()}


def _described(unit: Unit, running: Mapping[int, JobRecord], places: _Places) -> dict[int, Straggler]:
    """Return what a racer has to know of jobs that run, by id."""
    present = present_races(unit, running)
    copies = races.load_rivals(unit.session, present.values())
    rivals = {id_: Rivals(race.copies, copies.get(id_, ())) for id_, race in present.items()}
    were = sites_of(unit.session, [*running, *(each.id for same in copies.values() for each in same)])
    found: dict[int, Straggler] = {}
    for job in running.values():
        theirs = rivals.get(job.id, Rivals())
        used = {site for each in (job, *theirs.copies) for site in were.get(each.id, ())}
        cpus = places.task_queues[job.task_queue_id].traits.amounts.cpus
        found[job.id] = straggler(job, cpus, theirs, places.sites(job.task_queue_id), used, unit.now)
    return found


class _Places:
    """Where the task queues of jobs lead now, by site."""

    def __init__(self, unit: Unit, world: World, jobs: Iterable[JobRecord], glance: SlotGlance | None) -> None:
        self.task_queues: Mapping[int, TaskQueue] = {
            each.id: each for each in load_task_queues(unit.session, {job.task_queue_id for job in jobs})
        }
        self._reach = world.reach
        self._open = [
            queue
            for queue in world.tree.queues
            if self.task_queues and not active_bans(world.bans, queue, unit.now) and not closed_at(world, queue)
        ]
        self._idle: _IdleSlots = glance.idle(unit, world) if glance is not None and self.task_queues else {}
        self._sites: dict[int, dict[str, int]] = {}

    def sites(self, task_queue_id: int) -> dict[str, int]:
        """Return the sites that the jobs of a task queue can go to, with how many slots would take one now."""
        if task_queue_id not in self._sites:
            sites: Counter[str] = Counter()
            task_queue = self.task_queues[task_queue_id]
            amounts = task_queue.traits.amounts
            for queue in self._open:
                if self._reach.can_go(task_queue, queue):
                    idle = self._idle.get(queue, ())
                    sites[queue.site] += sum(each.count for each in idle if amounts.fits_in(each.free))
            self._sites[task_queue_id] = dict(sites)
        return self._sites[task_queue_id]
