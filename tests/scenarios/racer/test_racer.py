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
from support.races import REPEATABLE, SITES, A, B, C, GridRaceLink, Runner, race_of
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
    """A set of which every job runs on A, each in a slot of its own, and what their pilot tells."""

    def __init__(self, grid: Grid, jobs: int) -> None:
        self.ids = grid.submit(count=jobs, attributes=REPEATABLE)
        self.pilot: Pilot = grid.start_pilot(A)
        self.matches = {match.job_id: match for match in self.pilot.ask(*map(a_slot, map(str, range(jobs)))).matches}
        self.pilot.beat(*(JobReport(job_id, 1, state=JobState.RUNNING) for job_id in self.ids))

    def end(self, *ids: int, wall_s: float) -> None:
        """Let these end well after so long."""
        done = (JobReport(each, 1, outcome=Outcome.EXITED, exit_code=0, wall_s=wall_s) for each in ids)
        self.pilot.beat(*done)


async def test_a_straggler_at_the_tail_is_raced_and_its_copy_ends_the_wait_for_the_set(
    grid: Grid, link: GridRaceLink
) -> None:
    farm = Farm(grid, 20)
    straggler = farm.ids[7]
    racer = a_racer(link)
    grid.pass_time(minutes=10)
    farm.end(*(each for each in farm.ids if each != straggler), wall_s=600)
    await racer.run_once()
    assert link.started == [], "ten minutes are what the others took"
    for _ in range(3):
        grid.pass_time(minutes=2)
        farm.pilot.beat()
        await racer.run_once()
    ((raced, copy_id),) = link.started
    assert raced == straggler
    copy = Runner(grid, B)
    assert copy.job.id == copy_id
    grid.pass_time(minutes=10)
    copy.ends()
    assert {job.state for job in grid.jobs(farm.ids).values()} == {JobState.DONE}
    await racer.run_once()
    assert len(link.started) == 1


async def test_while_jobs_of_the_set_wait_none_of_it_is_raced(grid: Grid, link: GridRaceLink) -> None:
    farm = Farm(grid, 20)
    grid.pass_time(minutes=1)
    farm.end(*farm.ids[2:], wall_s=60)
    farm.pilot.report(farm.matches[farm.ids[0]], Outcome.EVICTED)
    grid.pass_time(minutes=15)
    farm.pilot.beat()
    await a_racer(link).run_once()
    assert link.started == []
    Runner(grid, A)
    await a_racer(link).run_once()
    assert [raced for raced, _ in link.started] == [farm.ids[1]]


async def test_an_urgent_job_gets_its_copies_on_other_sites_one_after_the_other(grid: Grid, link: GridRaceLink) -> None:
    (job_id,) = grid.submit(attributes=URGENT)
    racer = a_racer(link, urgent_after_s=0)
    await racer.run_once()
    assert link.started == [], "a job that waits needs no copy"
    Runner(grid, A)
    for _ in range(3):
        await racer.run_once()
    assert [raced for raced, _ in link.started] == [job_id], "where the first copy goes is not known yet"
    Runner(grid, B)
    for _ in range(3):
        await racer.run_once()
    assert [raced for raced, _ in link.started] == [job_id] * 2
    Runner(grid, C).ends()
    assert grid.job(job_id).state is JobState.DONE
    assert len(race_of(grid, job_id).copies) == 2


async def test_an_urgent_job_far_behind_others_of_its_set_is_raced_after_some_rounds(
    grid: Grid, link: GridRaceLink
) -> None:
    ids = grid.submit(count=3 * MAX_TAIL_JOBS + 5, attributes=URGENT)
    grid.change(JobChange.HOLD, *ids[: 3 * MAX_TAIL_JOBS])
    running = Runner(grid, A).job.id
    racer = a_racer(link, urgent_after_s=0)
    assert await racer.dry_run() == ()
    for _ in range(2):
        await racer.run_once()
    assert link.started == [], "these looks went to other jobs"
    await racer.run_once()
    assert [raced for raced, _ in link.started] == [running]


async def test_a_copy_that_fails_is_not_replaced_beyond_what_a_job_may_have(grid: Grid, link: GridRaceLink) -> None:
    grid.submit(attributes=URGENT)
    Runner(grid, A)
    racer = a_racer(link, urgent_after_s=0)
    for queue in (B, C):
        await racer.run_once()
        Runner(grid, queue).ends(exit_code=1)
    for _ in range(3):
        await racer.run_once()
    assert len(link.started) == 2


async def test_the_bound_on_what_races_may_cost_an_owner_in_a_day_holds_for_those_that_run(
    grid: Grid, link: GridRaceLink
) -> None:
    ids = grid.submit(count=2, attributes=URGENT)
    runners = [Runner(grid, A) for _ in ids]
    racer = a_racer(link, urgent_after_s=0, most_copies_of_owner=1, most_lost_core_s_a_day=300)
    await racer.run_once()
    Runner(grid, B)
    grid.pass_time(minutes=5)
    for runner in runners:
        runner.pilot.beat()
    grid.change(JobChange.REMOVE, ids[0])
    await racer.run_once()
    assert [raced for raced, _ in link.started] == [ids[0]]
    assert "races would cost lhcb/users/alice too much within a day (300 so far)" in (await racer.dry_run())[0]
    grid.pass_time(days=2)
    Runner(grid, A)
    await racer.run_once()
    assert [raced for raced, _ in link.started] == ids


async def test_a_dry_run_says_what_it_would_do_and_why_and_does_nothing(grid: Grid, link: GridRaceLink) -> None:
    farm = Farm(grid, 20)
    grid.pass_time(minutes=1)
    farm.end(*farm.ids[1:], wall_s=60)
    (urgent_id,) = grid.submit(attributes=URGENT)
    Runner(grid, A)
    assert await a_racer(link, urgent_after_s=0).dry_run() == (
        f"job {urgent_id}: a copy: it is urgent",
        f"job {farm.ids[0]}: no copy: it has run 60 s, and 600 s are not too long",
    )
    assert link.started == []


class FlakyLink(GridRaceLink):
    """A server that refuses the copies of some jobs, or has given the turn to another."""

    refused: frozenset[int] = frozenset()
    in_turn = True

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        if not self.in_turn:
            raise LeadershipLostError("racer")
        made = await super().start_copies([copy for copy in copies if copy.job_id not in self.refused])
        by_job = {each.job_id: each for each in made}
        return [by_job.get(copy.job_id, StartedRaceCopy(copy.job_id, 0, "it has ended")) for copy in copies]


async def test_a_copy_that_is_refused_keeps_no_other_from_being_made(grid: Grid) -> None:
    link = FlakyLink(grid)
    ids = grid.submit(count=3, attributes=URGENT)
    for _ in ids:
        Runner(grid, A)
    link.refused = frozenset({ids[1]})
    await a_racer(link, urgent_after_s=0).run_once()
    assert [raced for raced, _ in link.started] == [ids[0], ids[2]]


async def test_a_racer_that_has_lost_its_turn_ends_its_round(grid: Grid) -> None:
    link = FlakyLink(grid)
    grid.submit(attributes=URGENT)
    Runner(grid, A)
    link.in_turn = False
    with pytest.raises(LeadershipLostError):
        await a_racer(link, urgent_after_s=0).run_once()
