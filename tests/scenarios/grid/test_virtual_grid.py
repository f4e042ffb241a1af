"""The virtual grid itself: a pilot without a policy runs jobs in virtual time."""

from __future__ import annotations

import pytest

from pilotage_server.storage.database.engine import Database
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock)


def test_jobs_run_in_parallel_for_their_run_times(grid: VirtualGrid) -> None:
    grid.node(cpus=2)
    jobs = [grid.submit(run_s) for run_s in (100, 50, 50)]
    assert grid.until(lambda: grid.finished(*jobs[:2])) == pytest.approx(100, abs=1)
    assert grid.finished(*jobs)


def test_job_starts_at_once_on_a_waiting_pilot(grid: VirtualGrid) -> None:
    node = grid.node()
    grid.pass_time(7)
    job = grid.submit(30)
    assert list(node.running().values()) == [job]
    assert grid.states(job) == ["RUNNING"]
