"""What a racer says to a server, without the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage.values.accounts import Account
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage_agents.racer.planning import JobSet, RaceLoad, RunningJob
from pilotage_server.core.races.stragglers import SetReport, Straggler
from pilotage_server.operations.races import races as server
from pilotage_server.operations.races.stragglers import IdleSlotCache, find_stragglers, race_loads
from support.grid import Grid


class GridRaceLink:
    """The server of a grid; `started` notes the copies that it has made, by job."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._glance = IdleSlotCache()
        self.started: list[tuple[int, int]] = []

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[JobSet], RaceLoad]:
        found = self._grid.read(
            lambda transaction, state: find_stragglers(transaction, state, 0, self._glance, after_jobs)
        )
        loads = {load.account: load for load in self._grid.read(lambda transaction, _: race_loads(transaction))}
        copies = {owner: load.copies for owner, load in loads.items()}
        return [_set(look) for look in found.sets], RaceLoad(copies, {each: loads[each].lost_core_s for each in loads})

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        made = self._grid.write(lambda transaction, state: server.start_copies(transaction, state, copies))
        self.started += [(each.job_id, each.copy_id) for each in made if each.copy_id]
        return made


def _set(look: SetReport) -> JobSet:
    figures = look.figures
    p95_s = figures.p95.total_seconds()
    runners = tuple(_runner(each) for each in look.stragglers)
    return JobSet(
        look.of.id,
        look.of.jobs,
        look.of.urgent,
        figures.sampled,
        figures.done,
        p95_s,
        look.waiting,
        runners,
        look.next_after_job,
    )


def _runner(straggler: Straggler) -> RunningJob:
    job = straggler.job
    return RunningJob(
        job.id,
        Account(job.vo, job.group, job.owner),
        straggler.running.total_seconds(),
        straggler.cpus,
        straggler.copies_made,
        straggler.copy_waits,
        {each.site: each.free_slots for each in straggler.sites},
    )
