"""A grid on a database in which places are throttled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.amounts import Amounts
from pilotage_server.core.attempts.reports import NodeState
from pilotage_server.core.health.black_holes import BlackHole, HealthRules, Location, LocationLevel
from pilotage_server.core.health.evidence import RunningAttempts, RunningFilter
from pilotage_server.core.health.throttles import Throttle, ThrottleChange, new_throttle
from pilotage_server.operations.health import HealthWatch, list_health, store_changes
from pilotage_server.storage.attempts import load_running
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot
from support.virtual_clock import VirtualClock

NODE = Location(LocationLevel.NODE, "CERN", node="n1")
QUEUE = Location(LocationLevel.QUEUE, "CERN", "ce01", "long")
FAST = timedelta(minutes=1)
AT_CERN = RunningFilter(sites=frozenset({"CERN"}))


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


def throttled(grid: Grid, place: Location = NODE) -> Throttle:
    """Let a place be found out as a server would."""

    def store(transaction: Transaction) -> Throttle:
        found = new_throttle(BlackHole(place, 6, 7), HealthRules(), transaction.now)
        (made,) = store_changes(transaction, grid.state, [ThrottleChange(None, found)])
        assert made.new is not None
        return made.new

    return grid.database.write(store)


def known(grid: Grid) -> list[Throttle]:
    """Return all throttles."""
    return list(grid.read(lambda transaction, _: list_health(transaction)))


def running(grid: Grid, wanted: RunningFilter = AT_CERN) -> list[RunningAttempts]:
    """Return what the jobs that run tell of their places."""
    return grid.read(lambda transaction, _: load_running(transaction.session, FAST, transaction.now, wanted))


def look(grid: Grid, watch: HealthWatch) -> list[ThrottleChange]:
    """Let a server look, and go on from that though nothing is stored."""
    found = grid.read(watch.review)
    watch.commit(found)
    return list(found.changes)
