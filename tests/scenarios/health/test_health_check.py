"""When a server reviews the health of locations: soon after failures, otherwise at long intervals."""

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
from support.sql_statements import statements
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


async def test_many_failures_are_reviewed_after_the_shortest_interval(grid: Grid) -> None:
    task = HealthTask(Transactions(grid.database, grid.state), lambda: 0)
    await task.run_once()
    end_jobs(a_pilot(grid, "fine"), 1, 0)
    end_jobs(a_pilot(grid, "hole"), 6, 1)
    for _ in range(MIN_CYCLES_BETWEEN_CHECKS):
        await task.run_once()
    assert not grid.state.throttles
    await task.run_once()
    assert [str(location) for location in grid.state.throttles] == ["CERN/hole"]


async def test_failures_at_another_server_are_reviewed_at_the_longest_interval(grid: Grid) -> None:
    other = grid.restarted()
    task = HealthTask(Transactions(grid.database, other.state), lambda: 0)
    await task.run_once()
    end_jobs(a_pilot(grid, "fine"), 1, 0)
    end_jobs(a_pilot(grid, "hole"), 6, 1)
    for _ in range(MAX_CYCLES_BETWEEN_CHECKS - 1):
        await task.run_once()
    assert not other.state.throttles
    await task.run_once()
    assert [str(location) for location in other.state.throttles] == ["CERN/hole"]


async def test_constant_failures_without_black_hole_lengthen_the_interval(grid: Grid) -> None:
    grid.submit(count=300)
    task = HealthTask(Transactions(grid.database, grid.state), lambda: 0)
    nodes = [a_pilot(grid, f"node{number}") for number in range(2)]
    reviews: list[int] = []
    with statements(grid.database) as executed:
        for cycle in range(120):
            for node in nodes:
                end_jobs(node, 1, 1)
            executed.clear()
            await task.run_once()
            reviews += [cycle] if executed else []
    assert [later - before for before, later in pairwise(reviews)] == [6, 11, 21, 40, 40]


async def test_slow_reviews_lengthen_the_interval(grid: Grid) -> None:
    elapsed_s = 0.0

    def boot_clock() -> float:
        nonlocal elapsed_s
        elapsed_s += 0.75
        return elapsed_s

    task = HealthTask(Transactions(grid.database, grid.state), boot_clock)
    reviews: list[int] = []
    with statements(grid.database) as executed:
        for cycle in range(100):
            executed.clear()
            await task.run_once()
            reviews += [cycle] if executed else []
    assert reviews == [
        0,
        MAX_CYCLES_BETWEEN_CHECKS + PAUSE_FACTOR - 1,
    ]  # when a review is due, each cycle reads the clock once
