"""FindStragglers: what runs of the sets that are at their tails and of urgent ones, and where copies could run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pilotage.bans import active_bans
from pilotage_server.core.demand import idle_slots
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.races import RaceSet, is_of_present_run
from pilotage_server.core.stragglers import (
    GLANCE,
    LONGEST_TAIL,
    MOST_LOOKED_AT,
    Figures,
    OwnerLoad,
    SetLook,
    Straggler,
    figures_of,
    is_near_its_end,
    loads_of,
    runs,
    spread_ids,
    straggler,
)
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.trials import closed_at, not_throttled
from pilotage_server.operations.world import World
from pilotage_server.storage import race_sets, races
from pilotage_server.storage.attempts import load_attempts_of, sites_of
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.slots import load_slots
from pilotage_server.storage.task_queues import load_task_queues

SETS_IN_A_CALL = 500
"""So many sets are looked at in one transaction."""

_OF_LATE = timedelta(days=1)
"""For so long an owner's losses stand against him."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Sets of which something may be raced; there are more after `next_after`, 0 = none."""

    sets: tuple[SetLook, ...]
    next_after: int


def find_stragglers(unit: Unit, world: World, after_set: int) -> Stragglers:
    """Return the next of the sets that are urgent, or near their ends, and of which something runs."""
    sets = race_sets.next_sets(unit.session, after_set, SETS_IN_A_CALL)
    looks = {of: _look(unit, of) for of in sets}
    wanted = {of: look for of, look in looks.items() if any(map(runs, look[1]))}
    running = [job for _, live in wanted.values() for job in live if runs(job)]
    described = _described(unit, world, running)
    next_after = sets[-1].id if len(sets) == SETS_IN_A_CALL else 0
    found = (
        SetLook(of, figures, sum(not runs(job) for job in live), tuple(described[job.id] for job in live if runs(job)))
        for of, (figures, live) in wanted.items()
    )
    return Stragglers(tuple(found), next_after)


def race_loads(unit: Unit) -> tuple[OwnerLoad, ...]:
    """Return what the races of each owner hold now and have cost of late."""
    open_races = races.load_all_open(unit.session)
    copies = [copy for same in races.load_rivals(unit.session, open_races.values()).values() for copy in same]
    attempts = load_attempts_of(unit.session, [copy.id for copy in copies])
    lost = races.sum_losses_since(unit.session, unit.now - _OF_LATE)
    return loads_of(lost, open_races, copies, attempts, unit.now)


def _look(unit: Unit, of: RaceSet) -> tuple[Figures, Sequence[JobRecord]]:
    """Return how far a set is, and its jobs that have not ended, none where they are too many or hardly any has."""
    if of.urgent:
        return Figures(), race_sets.live_jobs(unit.session, of.id, LONGEST_TAIL)
    if not is_near_its_end(race_sets.sample(unit.session, of, spread_ids(of, GLANCE))):
        return Figures(), ()
    live = race_sets.live_jobs(unit.session, of.id, LONGEST_TAIL + 1)
    if not 0 < len(live) <= LONGEST_TAIL:
        return Figures(), ()
    return figures_of(race_sets.sample(unit.session, of, spread_ids(of, MOST_LOOKED_AT))), live


def _described(unit: Unit, world: World, running: Sequence[JobRecord]) -> dict[int, Straggler]:
    """Return what a racer has to know of jobs that run, by id."""
    if not running:
        return {}
    last = races.load_last(unit.session, [job.id for job in running])
    theirs = [last[job.id] for job in running if job.id in last and is_of_present_run(last[job.id], job)]
    present = races.load_rivals(unit.session, theirs)
    were = sites_of(unit.session, [job.id for job in running] + [each.id for same in present.values() for each in same])
    places = _Places(unit, world, {job.task_queue_id for job in running})
    return {job.id: _straggler(unit, job, present.get(job.id, []), places, were) for job in running}


def _straggler(
    unit: Unit, job: JobRecord, copies: Sequence[JobRecord], places: _Places, were: Mapping[int, set[str]]
) -> Straggler:
    used = {site for each in (job, *copies) for site in were.get(each.id, ())}
    cpus = places.task_queues[job.task_queue_id].traits.amounts.cpus
    return straggler(job, cpus, copies, places.sites(job.task_queue_id), used, unit.now)


class _Places:
    """Where the jobs of task queues can go now, by site."""

    def __init__(self, unit: Unit, world: World, task_queue_ids: Iterable[int]) -> None:
        self.task_queues: Mapping[int, TaskQueue] = {
            each.id: each for each in load_task_queues(unit.session, task_queue_ids)
        }
        self._reach = world.reach
        self._open = [
            queue
            for queue in world.tree.queues
            if not active_bans(world.bans, queue, unit.now) and not closed_at(world, queue)
        ]
        self._idle = idle_slots(not_throttled(world, load_slots(unit.session)))
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
