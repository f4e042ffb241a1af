"""Fixtures of all scenarios: a grid in virtual time, and policies as a site would write them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.leadership import DatabaseLeadership
from support.site_policies import SitePolicies
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    """Return a grid with one queue and the default rules."""
    return VirtualGrid(sqlite_database, clock)


@pytest.fixture
def policies(shared_data: Path, tmp_path: Path) -> SitePolicies:
    """Return the shipped and published policies, with a folder for changed ones."""
    folder = tmp_path / "policies"
    folder.mkdir()
    return SitePolicies(shared_data, folder)


@pytest.fixture
def long_lease_grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    """Return a grid whose pilots report seldom, for scenarios that last days."""
    rules = Rules(lease=timedelta(hours=4), heartbeat=timedelta(minutes=30), pilot_silence=timedelta(hours=8))
    return VirtualGrid(sqlite_database, clock, maintenance_interval=timedelta(minutes=10), rules=rules)


@pytest.fixture
def leadership(sqlite_database: Database) -> DatabaseLeadership:
    """Return the server's side of the leader election of agents."""
    return DatabaseLeadership(sqlite_database)
