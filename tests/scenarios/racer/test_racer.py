"""The racer with a server, pilots and jobs, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pilotage.errors import LeadershipLostError
from pilotage.values.attempts import Outcome
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage_agents.racer.racer import Racer
from pilotage_agents.racer.settings import RacerSettings
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.races.stragglers import MAX_TAIL_JOBS
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot, a_slot
from support.races import REPEATABLE, SITES, A, B, C, GridRaceLink, PilotedJob, race_of
from support.virtual_clock import VirtualClock

URGENT = {**REPEATABLE, "Urgent": True}


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> Grid:
    return Grid(sqlite_database, clock, *SITES)


@pytest.fixture
def link(grid: Grid) -> GridRaceLink:
    return GridRaceLink(grid)


def a_racer(link: GridRaceLink, **settings: Any) -> Racer:
    return Racer(RacerSettings.model_validate(settings), link)


class Farm:
    """A set of jobs that all run on A, each in its own slot of one pilot."""

    def __init__(self, grid: Grid, jobs: int) -> None:
        self.ids = grid.submit(count=jobs, attributes=REPEATABLE)
        self.pilot: Pilot = grid.start_pilot(A)
        self.matches = {
            match.job_id: match for match in self.pilot.request_jobs(*map(a_slot, map(str, range(jobs)))).matches
        }
        self.pilot.beat(*(JobReport(job_id, 1, state=JobState.RUNNING) for job_id in self.ids))

    def end(self, *ids: int, wall_s: float) -> None:
        """End these jobs successfully after `wall_s`."""
        done = (JobReport(job_id, 1, outcome=Outcome.EXITED, exit_code=0, wall_s=wall_s) for job_id in ids)
        self.pilot.beat(*done)


async def test_race_copy_of_a_straggler_completes_the_set(grid: Grid, link: GridRaceLink) -> None:
    farm = Farm(grid, 20)
    straggler = farm.ids[7]
    racer = a_racer(link)
    grid.pass_time(minutes=10)
    farm.end(*(job_id for job_id in farm.ids if job_id != straggler), wall_s=600)
    await racer.run_once()
    assert link.started == [], "the other jobs took ten minutes too"
    for _ in range(3):
        grid.pass_time(minutes=2)
        farm.pilot.beat()
        await racer.run_once()
    ((raced, copy_id),) = link.started
    assert raced == straggler
    copy = PilotedJob(grid, B)
    assert copy.job.id == copy_id
    grid.pass_time(minutes=10)
    copy.finish()
    assert {job.state for job in grid.jobs(farm.ids).values()} == {JobState.DONE}
    await racer.run_once()
    assert len(link.started) == 1


async def test_set_with_waiting_jobs_is_not_raced(grid: Grid, link: GridRaceLink) -> None:
    farm = Farm(grid, 20)
    grid.pass_time(minutes=1)
    farm.end(*farm.ids[2:], wall_s=60)
    farm.pilot.report(farm.matches[farm.ids[0]], Outcome.EVICTED)
    grid.pass_time(minutes=15)
    farm.pilot.beat()
    await a_racer(link).run_once()
    assert link.started == []
    PilotedJob(grid, A)
    await a_racer(link).run_once()
    assert [raced for raced, _ in link.started] == [farm.ids[1]]


async def test_urgent_job_gets_copies_on_other_sites_one_by_one(grid: Grid, link: GridRaceLink) -> None:
    (job_id,) = grid.submit(attributes=URGENT)
    racer = a_racer(link, urgent_after_s=0)
    await racer.run_once()
    assert link.started == [], "a waiting job needs no copy"
    PilotedJob(grid, A)
    for _ in range(3):
        await racer.run_once()
    assert [raced for raced, _ in link.started] == [job_id], "the site of the first copy is not known yet"
    PilotedJob(grid, B)
    for _ in range(3):
        await racer.run_once()
    assert [raced for raced, _ in link.started] == [job_id] * 2
    PilotedJob(grid, C).finish()
    assert grid.job(job_id).state is JobState.DONE
    assert len(race_of(grid, job_id).copies) == 2


async def test_urgent_job_beyond_the_tail_is_raced_after_some_cycles(grid: Grid, link: GridRaceLink) -> None:
    ids = grid.submit(count=3 * MAX_TAIL_JOBS + 5, attributes=URGENT)
    grid.change(JobChange.HOLD, *ids[: 3 * MAX_TAIL_JOBS])
    running = PilotedJob(grid, A).job.id
    racer = a_racer(link, urgent_after_s=0)
    assert await racer.dry_run() == ()
    for _ in range(2):
        await racer.run_once()
    assert link.started == [], "these cycles examined other jobs"
    await racer.run_once()
    assert [raced for raced, _ in link.started] == [running]


async def test_failed_copies_count_towards_the_limit_of_copies(grid: Grid, link: GridRaceLink) -> None:
    grid.submit(attributes=URGENT)
    PilotedJob(grid, A)
    racer = a_racer(link, urgent_after_s=0)
    for queue in (B, C):
        await racer.run_once()
        PilotedJob(grid, queue).finish(exit_code=1)
    for _ in range(3):
        await racer.run_once()
    assert len(link.started) == 2


async def test_daily_cost_limit_of_an_owner_includes_running_races(grid: Grid, link: GridRaceLink) -> None:
    ids = grid.submit(count=2, attributes=URGENT)
    runners = [PilotedJob(grid, A) for _ in ids]
    racer = a_racer(link, urgent_after_s=0, most_copies_of_owner=1, most_lost_core_s_a_day=300)
    await racer.run_once()
    PilotedJob(grid, B)
    grid.pass_time(minutes=5)
    for runner in runners:
        runner.pilot.beat()
    grid.change(JobChange.REMOVE, ids[0])
    await racer.run_once()
    assert [raced for raced, _ in link.started] == [ids[0]]
    assert "races would cost lhcb/users/alice too much within a day (300 so far)" in (await racer.dry_run())[0]
    grid.pass_time(days=2)
    PilotedJob(grid, A)
    await racer.run_once()
    assert [raced for raced, _ in link.started] == ids


async def test_dry_run_reports_planned_copies_with_reasons_and_starts_none(grid: Grid, link: GridRaceLink) -> None:
    farm = Farm(grid, 20)
    grid.pass_time(minutes=1)
    farm.end(*farm.ids[1:], wall_s=60)
    (urgent_id,) = grid.submit(attributes=URGENT)
    PilotedJob(grid, A)
    assert await a_racer(link, urgent_after_s=0).dry_run() == (
        f"job {urgent_id}: a copy: it is urgent",
        f"job {farm.ids[0]}: no copy: it has run 60 s, and 600 s are not too long",
    )
    assert link.started == []


class FlakyLink(GridRaceLink):
    """A server that rejects the copies of some jobs, or whose leader is another racer."""

    rejected: frozenset[int] = frozenset()
    is_leader = True

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        if not self.is_leader:
            raise LeadershipLostError("racer")
        started = await super().start_copies([copy for copy in copies if copy.job_id not in self.rejected])
        by_job = {copy.job_id: copy for copy in started}
        return [by_job.get(copy.job_id, StartedRaceCopy(copy.job_id, 0, "it has ended")) for copy in copies]


async def test_rejected_copy_does_not_stop_other_copies(grid: Grid) -> None:
    link = FlakyLink(grid)
    ids = grid.submit(count=3, attributes=URGENT)
    for _ in ids:
        PilotedJob(grid, A)
    link.rejected = frozenset({ids[1]})
    await a_racer(link, urgent_after_s=0).run_once()
    assert [raced for raced, _ in link.started] == [ids[0], ids[2]]


async def test_lost_leadership_ends_the_cycle(grid: Grid) -> None:
    link = FlakyLink(grid)
    grid.submit(attributes=URGENT)
    PilotedJob(grid, A)
    link.is_leader = False
    with pytest.raises(LeadershipLostError):
        await a_racer(link, urgent_after_s=0).run_once()
