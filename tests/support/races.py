"""Races on a grid of three sites, and a racer's link to the server of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pilotage.job_description import Value
from pilotage.values.accounts import Account
from pilotage.values.attempts import Outcome, ReportResult
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage_agents.racer.planning import RacedJobs, RaceLoad, RunningJob
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.races.stragglers import SetReport, Straggler
from pilotage_server.operations.matching.work import Match
from pilotage_server.operations.races import races as server
from pilotage_server.operations.races.races import RaceFilter, RaceView, list_races, start_copies
from pilotage_server.operations.races.stragglers import IdleSlotCache, find_stragglers, race_loads
from support.grid import Grid, Pilot, a_slot
from support.jobs import an_operator

A, B, C = "A/ce/q", "B/ce/q", "C/ce/q"
SITES = (A, B, C)
REPEATABLE: Mapping[str, Value] = MappingProxyType({"MayBeRepeated": True})


class PilotedJob:
    """A running job with its own pilot."""

    def __init__(self, grid: Grid, queue: str, cpus: int = 1) -> None:
        self.grid = grid
        self.pilot: Pilot = grid.start_pilot(queue)
        self.match: Match = self.pilot.take(a_slot(cpus=cpus))
        self.pilot.start(self.match)

    @property
    def job(self) -> JobRecord:
        return self.grid.job(self.match.job_id)

    def finish(self, exit_code: int = 0, **fields: Any) -> ReportResult:
        """Report that the payload has exited."""
        return self.pilot.report(self.match, Outcome.EXITED, exit_code=exit_code, **fields)

    def has_lost_lease(self) -> bool:
        """Return whether the answer to the next heartbeat lists the job's lease as lost."""
        return any(lost.job_id == self.match.job_id for lost in self.pilot.beat().lost)

    def killed(self) -> ReportResult:
        """Report that the payload was killed on the server's order."""
        return self.pilot.report(self.match, Outcome.KILLED)


def start_copy(grid: Grid, job_id: int, reason: str = "it lags behind") -> StartedRaceCopy:
    """Start a race copy of a job."""
    (made,) = grid.write(lambda transaction, state: start_copies(transaction, state, [NewRaceCopy(job_id, reason)]))
    return made


def start_race(grid: Grid, **fields: Any) -> tuple[PilotedJob, int]:
    """Run a repeatable job on A; returns it and the id of its waiting race copy."""
    grid.submit(attributes=REPEATABLE, **fields)
    original = PilotedJob(grid, A, fields.get("request_cpus", 1))
    return original, start_copy(grid, original.match.job_id).copy_id


def race_of(grid: Grid, job_id: int) -> RaceView:
    """Return the race of a job."""
    wanted = RaceFilter("*", job_ids=(job_id,))
    (view,) = grid.read(lambda transaction, _: list_races(transaction, an_operator(), wanted)).races
    return view


class GridRaceLink:
    """A racer's link to the server of a grid; `started` records the pairs of job and race copy."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._idle_slots = IdleSlotCache()
        self.started: list[tuple[int, int]] = []

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[RacedJobs], RaceLoad]:
        found = self._grid.read(
            lambda transaction, state: find_stragglers(transaction, state, 0, self._idle_slots, after_jobs)
        )
        loads = {load.account: load for load in self._grid.read(lambda transaction, _: race_loads(transaction))}
        copies = {owner: load.copies for owner, load in loads.items()}
        return [_job_set(report) for report in found.sets], RaceLoad(
            copies, {each: loads[each].lost_core_s for each in loads}
        )

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        made = self._grid.write(lambda transaction, state: server.start_copies(transaction, state, copies))
        self.started += [(each.job_id, each.copy_id) for each in made if each.copy_id]
        return made


def _job_set(report: SetReport) -> RacedJobs:
    figures = report.figures
    p95_s = figures.p95.total_seconds()
    stragglers = tuple(_running_job(each) for each in report.stragglers)
    return RacedJobs(
        report.of.id,
        report.of.jobs,
        report.of.urgent,
        figures.sampled,
        figures.done,
        p95_s,
        report.waiting,
        stragglers,
        report.next_after_job,
    )


def _running_job(straggler: Straggler) -> RunningJob:
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
