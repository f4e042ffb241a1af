"""A grid on a database in which places are throttled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage_server.core.amounts import Amounts
from pilotage_server.core.evidence import Running, Wanted
from pilotage_server.core.health import BlackHole, HealthRules, Level, Place
from pilotage_server.core.reports import NodeState
from pilotage_server.core.throttles import Change, Throttle, throttle
from pilotage_server.operations.health import HealthWatch, list_health, store_changes
from pilotage_server.storage.ended_attempts import load_running
from pilotage_server.storage.engine import Database, Unit
from support.grid import Grid, Pilot
from support.virtual_clock import VirtualClock

NODE = Place(Level.NODE, "CERN", node="n1")
QUEUE = Place(Level.QUEUE, "CERN", "ce01", "long")
FAST = timedelta(minutes=1)
AT_CERN = Wanted(sites=frozenset({"CERN"}))


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    """Return a grid with jobs that wait."""
    grid = Grid(database, clock)
    grid.submit(count=50)
    return grid


def a_pilot(grid: Grid, node: str = "n1") -> Pilot:
    """Start a pilot on a node."""
    pilot = grid.start_pilot()
    pilot.beat(node=NodeState(node, Amounts(1)))
    return pilot


def throttled(grid: Grid, place: Place = NODE) -> Throttle:
    """Let a place be found out as a server would."""

    def store(unit: Unit) -> Throttle:
        found = throttle(BlackHole(place, 6, 7), HealthRules(), unit.now)
        (made,) = store_changes(unit, grid.world, [Change(None, found)])
        assert made.new is not None
        return made.new

    return grid.database.write(store)


def known(grid: Grid) -> list[Throttle]:
    """Return all throttles."""
    return list(grid.read(lambda unit, _: list_health(unit)))


def running(grid: Grid, wanted: Wanted = AT_CERN) -> list[Running]:
    """Return what the jobs that run tell of their places."""
    return grid.read(lambda unit, _: load_running(unit.session, FAST, unit.now, wanted))


def look(grid: Grid, watch: HealthWatch) -> list[Change]:
    """Let a server look, and go on from that though nothing is stored."""
    found = grid.read(watch.look)
    watch.keep(found)
    return list(found.changes)
