"""When a server looks for black holes: at once when jobs fail, else now and then."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_server.background import (
    MAX_CYCLES_BETWEEN_CHECKS,
    MIN_CYCLES_BETWEEN_CHECKS,
    PAUSE_FACTOR,
    HealthTask,
)
from pilotage_server.core.attempts.reports import NodeState
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot
from support.statements import statements
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> Grid:
    grid = Grid(sqlite_database, clock)
    grid.submit(count=50)
    return grid


def a_pilot(grid: Grid, node: str) -> Pilot:
    pilot = grid.start_pilot()
    pilot.beat(node=NodeState(node, Amounts(1)))
    return pilot


def end_jobs(pilot: Pilot, number: int, exit_code: int) -> None:
    for _ in range(number):
        pilot.report(pilot.take(), Outcome.EXITED, exit_code=exit_code, wall_s=1)


async def test_as_many_failures_as_a_node_may_have_are_looked_at_at_once(grid: Grid) -> None:
    duty = HealthTask(Transactions(grid.database, grid.state), lambda: 0)
    await duty.run_once()
    end_jobs(a_pilot(grid, "fine"), 1, 0)
    end_jobs(a_pilot(grid, "hole"), 6, 1)
    for _ in range(MIN_CYCLES_BETWEEN_CHECKS):
        await duty.run_once()
    assert not grid.state.throttles
    await duty.run_once()
    assert [str(place) for place in grid.state.throttles] == ["CERN/hole"]


async def test_failures_that_another_server_has_heard_of_are_seen_at_the_next_look(grid: Grid) -> None:
    other = grid.restarted()
    duty = HealthTask(Transactions(grid.database, other.state), lambda: 0)
    await duty.run_once()
    end_jobs(a_pilot(grid, "fine"), 1, 0)
    end_jobs(a_pilot(grid, "hole"), 6, 1)
    for _ in range(MAX_CYCLES_BETWEEN_CHECKS - 1):
        await duty.run_once()
    assert not other.state.throttles
    await duty.run_once()
    assert [str(place) for place in other.state.throttles] == ["CERN/hole"]


async def test_where_jobs_go_on_failing_for_their_own_sake_it_looks_less_and_less_often(grid: Grid) -> None:
    grid.submit(count=300)
    duty = HealthTask(Transactions(grid.database, grid.state), lambda: 0)
    nodes = [a_pilot(grid, f"node{number}") for number in range(2)]
    looks: list[int] = []
    with statements(grid.database) as asked:
        for turn in range(120):
            for node in nodes:
                end_jobs(node, 1, 1)
            asked.clear()
            await duty.run_once()
            looks += [turn] if asked else []
    assert [later - before for before, later in pairwise(looks)] == [6, 11, 21, 40, 40]


async def test_the_longer_a_look_takes_the_longer_it_rests(grid: Grid) -> None:
    elapsed_s = 0.0

    def boot_clock() -> float:
        nonlocal elapsed_s
        elapsed_s += 0.75
        return elapsed_s

    duty = HealthTask(Transactions(grid.database, grid.state), boot_clock)
    looks: list[int] = []
    with statements(grid.database) as asked:
        for turn in range(100):
            asked.clear()
            await duty.run_once()
            looks += [turn] if asked else []
    assert looks == [
        0,
        MAX_CYCLES_BETWEEN_CHECKS + PAUSE_FACTOR - 1,
    ]  # when it is time to look, each turn asks the clock once
