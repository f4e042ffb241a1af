"""Retention of pilots, task queues, trees and use, which bounds tables and memory."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules
from pilotage_server.operations.jobs.retention import REMOVALS
from pilotage_server.operations.startup.loading import refresh_state
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from support.grid import Grid, a_tree, an_idle_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, rules=Rules(jobs=JobLimits(longest_lease=timedelta(days=60))))


def clean(grid: Grid) -> None:
    for remove in REMOVALS:
        while grid.write(remove):
            pass


def rows(grid: Grid, table: str) -> int:
    count = select(func.count()).select_from(metadata.tables[table])
    return int(grid.read(lambda transaction, _: transaction.session.execute(count).scalar_one()))


def test_idle_task_queue_is_removed_from_table_and_memory(grid: Grid) -> None:
    gone = [grid.submit(request_cpus=cpus)[0] for cpus in (1, 2)]
    (stays,) = grid.submit(request_cpus=3)
    (held,) = grid.submit(request_cpus=4, hold=True)
    grid.change(JobChange.REMOVE, *gone)
    clean(grid)
    assert rows(grid, "task_queues") == 4
    grid.pass_time(minutes=61)
    clean(grid)
    kept = {grid.job(job_id).task_queue_id for job_id in (stays, held)}
    assert rows(grid, "task_queues") == 2
    assert set(grid.state.waiting.snapshot()) == kept


def test_new_job_recreates_removed_task_queue(grid: Grid) -> None:
    (gone,) = grid.submit()
    grid.change(JobChange.REMOVE, gone)
    grid.pass_time(minutes=61)
    clean(grid)
    (job_id,) = grid.submit()
    assert grid.job(job_id).task_queue_id != grid.job(gone).task_queue_id
    assert grid.start_pilot().claim() == [job_id]


def test_other_servers_forget_idle_task_queues(grid: Grid) -> None:
    (gone,) = grid.submit()
    other = grid.restarted()
    assert set(other.state.waiting.snapshot()) == {grid.job(gone).task_queue_id}
    grid.change(JobChange.REMOVE, gone)
    other.read(refresh_state)
    assert other.state.waiting.snapshot() == {}


def test_ended_pilot_is_removed_unless_it_holds_a_lease(grid: Grid) -> None:
    (job_id,) = grid.submit(lease=timedelta(days=50))
    ended, lost, holding, alive = (grid.start_pilot() for _ in range(4))
    ended.show(an_idle_slot())
    ended.beat(ending=True)
    lost.beat()
    assert holding.claim() == [job_id]
    for _ in range(3):
        grid.pass_time(days=16)
        alive.show(an_idle_slot())
    clean(grid)
    assert rows(grid, "pilots") == 2
    assert grid.job(job_id).state is JobState.MATCHED
    assert holding.beat().renewed
    assert alive.show().commands == ()


def test_old_inactive_tree_is_removed(grid: Grid) -> None:
    grid.put(a_tree("A/ce/q"))
    grid.pass_time(days=29)
    grid.put(a_tree("B/ce/q"))
    clean(grid)
    assert rows(grid, "trees") == 3
    grid.pass_time(days=2)
    clean(grid)
    assert rows(grid, "trees") == 2  # the tree that was active thirty days ago is kept
    grid.pass_time(days=31)
    clean(grid)
    assert rows(grid, "trees") == 1
    assert grid.restarted().state.tree.version == 3


def test_decayed_use_is_removed(grid: Grid) -> None:
    (job_id,) = grid.submit(a_user("alice"))
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=5)
    pilot.finish(match)
    assert grid.job(job_id).state is JobState.DONE
    grid.pass_time(days=63)
    clean(grid)
    assert rows(grid, "usage") == 1
    grid.pass_time(days=2)
    clean(grid)
    assert rows(grid, "usage") == 0
