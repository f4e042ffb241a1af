"""What a racer says to a server, without the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage_agents.core.racing import JobSet, Load, NewRival, Owner, Runner
from pilotage_agents.racer import StartedCopy
from pilotage_server.core.stragglers import SetLook, Straggler
from pilotage_server.operations import start_copies as server
from pilotage_server.operations.stragglers import SlotGlance, find_stragglers, race_loads
from support.grid import Grid


class GridRaceLink:
    """The server of a grid; `started` notes the copies that it has made, by job."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._glance = SlotGlance()
        self.started: list[tuple[int, int]] = []

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[JobSet], Load]:
        found = self._grid.read(lambda unit, world: find_stragglers(unit, world, 0, self._glance, after_jobs))
        loads = {Owner(*load.account): load for load in self._grid.read(lambda unit, _: race_loads(unit))}
        copies = {owner: load.copies for owner, load in loads.items()}
        return [_set(look) for look in found.sets], Load(copies, {each: loads[each].lost_core_s for each in loads})

    async def start_copies(self, copies: Sequence[NewRival]) -> Sequence[StartedCopy]:
        wanted = [server.NewRival(copy.job_id, copy.reason) for copy in copies]
        made = self._grid.write(lambda unit, world: server.start_copies(unit, world, wanted))
        self.started += [(each.job_id, each.copy_id) for each in made if each.copy_id]
        return [StartedCopy(*each) for each in made]


def _set(look: SetLook) -> JobSet:
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


def _runner(straggler: Straggler) -> Runner:
    job = straggler.job
    return Runner(
        job.id,
        Owner(job.vo, job.group, job.owner),
        straggler.running.total_seconds(),
        straggler.cpus,
        straggler.copies_made,
        straggler.copy_waits,
        {each.site: each.free_slots for each in straggler.sites},
    )
