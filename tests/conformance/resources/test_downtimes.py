"""Planned downtimes: what starts before them, the bans that they are, and what operators' bans have to do with them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.resources.tree import QueueId
from pilotage.values.demand import QueueSupply
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.core.resources.downtimes import Downtime
from pilotage_server.operations.explain import explain_job
from pilotage_server.operations.jobs.retention import REMOVALS
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.resources.bans import BanOrder, ban, list_bans, unban
from pilotage_server.operations.resources.downtimes import cancel_downtime, list_downtimes, plan_downtime
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, a_slot, a_tree, an_idle_slot
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

CERN = TreeNode("CERN")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    grid = Grid(database, clock)
    grid.put(a_tree(LONG, MaxWallTime="8 h"))
    return grid


def plan(grid: Grid, *, after_h: float, lasts_h: float = 10, drain_h: float = 0, node: TreeNode = CERN) -> Downtime:
    start = grid.clock() + timedelta(hours=after_h)
    end, drain = start + timedelta(hours=lasts_h), timedelta(hours=drain_h)
    wanted = Downtime(node, "new switches", start, end, drain, "")
    return grid.write(lambda transaction, state: plan_downtime(transaction, state, an_operator(), wanted))


def supply(grid: Grid) -> QueueSupply:
    queue = QueueId.parse(LONG)
    return grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies[0]


def summary(grid: Grid, job_id: int) -> str:
    found = grid.read(lambda transaction, state: explain_job(transaction, state, an_operator(), job_id))
    return " ".join(f"{exclusion.parameter} {exclusion.example}" for exclusion in found.exclusions)


def test_only_jobs_that_end_before_a_downtime_start(grid: Grid) -> None:
    plan(grid, after_h=6)
    (long,) = grid.submit(wall_time=timedelta(hours=7))
    (short,) = grid.submit(wall_time=timedelta(hours=5))
    (unknown,) = grid.submit()
    assert grid.start_pilot().claim(a_slot("s1"), a_slot("s2"), a_slot("s3")) == [short, unknown]
    assert "has a downtime from" in summary(grid, long)
    explained = grid.read(lambda transaction, state: explain_job(transaction, state, an_operator(), long))
    assert explained.summary.startswith("It waits for a downtime of the 1 queue to pass")
    assert "new switches; 25200 s would reach into it, 21600 s are left" in summary(grid, long)


def test_pilots_are_sent_while_their_life_ends_before_the_downtime(grid: Grid, clock: VirtualClock) -> None:
    plan(grid, after_h=9)
    assert not supply(grid).banned
    clock.advance(hours=1, seconds=1)
    assert supply(grid).banned
    clock.advance(hours=18)
    assert not supply(grid).banned


def test_demand_leaves_out_jobs_that_would_reach_into_a_downtime(grid: Grid) -> None:
    grid.put(a_tree(LONG))  # it states no MaxWallTime, so pilots are sent until the downtime
    plan(grid, after_h=6)
    grid.submit(wall_time=timedelta(hours=7), count=4)
    grid.submit(wall_time=timedelta(hours=5), count=2)
    grid.submit()
    queue = QueueId.parse(LONG)
    answer = grid.read(lambda transaction, state: get_demand(transaction, state, [queue]))
    assert sum(demand.waiting for demand in answer.demands) == 3


def test_explanation_counts_cpu_time_until_the_downtime(grid: Grid) -> None:
    plan(grid, after_h=6)
    (job,) = grid.submit(cpu_time=timedelta(hours=7))
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot())
    assert pilot.claim() == []
    explained = grid.read(lambda transaction, state: explain_job(transaction, state, an_operator(), job))
    assert "CPU time: 21600 s of work left, 25200 s asked" in explained.eligible_queues[0].obstacle


def test_drained_place_takes_no_jobs_until_the_downtime_is_over(grid: Grid, clock: VirtualClock) -> None:
    plan(grid, after_h=6, lasts_h=10, drain_h=2)
    first, second = grid.submit(count=2)
    pilot = grid.start_pilot()
    assert pilot.claim() == [first]
    clock.advance(hours=4)
    assert pilot.claim(a_slot("s2")) == []
    assert f"closed for a downtime from {(clock() + timedelta(hours=2)).isoformat()}" in summary(grid, second)
    clock.advance(hours=12)
    assert grid.start_pilot().claim() == [second]
    for remove in REMOVALS:
        grid.write(remove)
    assert grid.read(lambda transaction, _: list_downtimes(transaction)) == ()


def test_bans_of_operators_and_downtimes_leave_each_other_alone(grid: Grid, clock: VirtualClock) -> None:
    planned = plan(grid, after_h=0)
    olga = an_operator()
    grid.write(lambda transaction, state: ban(transaction, state, olga, BanOrder(CERN, "by hand")))
    grid.submit(count=2)
    pilot = grid.start_pilot()
    grid.write(lambda transaction, state: unban(transaction, state, olga, CERN))
    assert pilot.claim() == [], "the downtime holds"
    grid.write(lambda transaction, state: ban(transaction, state, olga, BanOrder(CERN, "by hand")))
    grid.write(lambda transaction, state: cancel_downtime(transaction, state, olga, planned.id))
    assert pilot.claim() == [], "the ban holds"
    assert len(grid.read(lambda transaction, _: list_bans(transaction))) == 1
    grid.write(lambda transaction, state: unban(transaction, state, olga, CERN))
    assert len(pilot.claim()) == 1
    with pytest.raises(NotFoundError, match="downtime"):
        grid.write(lambda transaction, state: cancel_downtime(transaction, state, olga, planned.id))


def test_downtimes_survive_a_restart_of_the_server(grid: Grid) -> None:
    plan(grid, after_h=0)
    grid.submit()
    assert grid.restarted().start_pilot().claim() == []


@pytest.mark.parametrize(("after_h", "lasts_h", "why"), [(1, 0, "is not later than the start"), (-2, 1, "has passed")])
def test_downtime_without_a_time_to_come_is_refused(grid: Grid, after_h: float, lasts_h: float, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        plan(grid, after_h=after_h, lasts_h=lasts_h)
    with pytest.raises(InvalidInputError, match="did you mean CERN"):
        plan(grid, after_h=1, node=TreeNode("CERNN"))
