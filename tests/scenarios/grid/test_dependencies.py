"""Jobs that wait for other jobs, on pilots in virtual time."""

from __future__ import annotations

import pytest

from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.storage.database.engine import Database
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock)


def child_of(grid: VirtualGrid, kind: DependencyKind, parent: int) -> int:
    return grid.submit(10, dependencies=[Dependency(0, kind, (JobSelection(parent),))])


def test_children_start_when_their_parent_starts_and_ends_well(grid: VirtualGrid) -> None:
    parent = grid.submit(100)
    beside, behind = (child_of(grid, kind, parent) for kind in (DependencyKind.AFTER, DependencyKind.AFTER_OK))
    grid.pass_time(60)
    assert grid.states(parent, beside, behind) == ["WAITING", "BLOCKED", "BLOCKED"]
    node = grid.node(cpus=2)
    assert sorted(node.running().values()) == [parent, beside]
    assert grid.until(lambda: grid.finished(parent)) == pytest.approx(100, abs=1)
    assert list(node.running().values()) == [behind]


def test_evicted_parent_has_not_ended(grid: VirtualGrid) -> None:
    node = grid.node(cpus=1)
    parent = grid.submit(100)
    child = child_of(grid, DependencyKind.AFTER_ANY, parent)
    grid.pass_time(50)
    grid.drain(node, evict=True)
    grid.until(lambda: grid.states(parent) == ["WAITING"])
    assert grid.states(child) == ["BLOCKED"]
    other = grid.node(cpus=1)
    assert grid.until(lambda: grid.finished(parent)) == pytest.approx(100, abs=1)
    assert list(other.running().values()) == [child]
