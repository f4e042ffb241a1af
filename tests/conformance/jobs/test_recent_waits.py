"""Waits of jobs that started lately, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.queries.waits import recent_jobs, recent_waits
from support.grid import Grid, Pilot
from support.jobs import a_user
from support.sql_statements import plan_of
from support.virtual_clock import VirtualClock

DAY = timedelta(days=1)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def start(grid: Grid, pilot: Pilot, job_id: int, minutes: float) -> None:
    """Let the job wait for some minutes, then start and end it."""
    grid.pass_time(minutes=minutes)
    match = pilot.take()
    assert match.job_id == job_id
    pilot.start(match)
    pilot.finish(match)


def waits_of(grid: Grid, job_id: int, age: timedelta = DAY) -> tuple[list[float], list[float]]:
    """Return the recent waits in minutes: of jobs like this one of its owner, and of its pool."""
    job = grid.job(job_id)
    task_queue = grid.state.waiting.task_queue(job.task_queue_id)
    assert task_queue is not None
    found = grid.read(lambda transaction, _: recent_waits(transaction.session, task_queue, transaction.now - age))
    return sorted(wait / 60 for wait in found.of_task_queue), sorted(wait / 60 for wait in found.of_pool)


def test_waits_are_those_of_the_pool_and_of_the_owner(grid: Grid) -> None:
    pilot = grid.start_pilot()
    (old,) = grid.submit()
    start(grid, pilot, old, 7)
    grid.pass_time(hours=25)
    for minutes, user, cores in ((1, "alice", None), (2, "bob", None), (3, "alice", 1)):
        (job_id,) = grid.submit(a_user(user), request_cpus=cores)
        start(grid, pilot, job_id, minutes)
    (other_vo,) = grid.submit(a_user("alice", vo="cms"))
    start(grid, pilot, other_vo, 4)
    (running,) = grid.submit()
    grid.pass_time(minutes=5)
    pilot.start(pilot.take())
    (waiting,) = grid.submit()
    assert waits_of(grid, waiting) == ([1, 5], [1, 2, 3, 5])
    assert waits_of(grid, running, timedelta(days=2)) == ([1, 5, 7], [1, 2, 3, 5, 7])


def test_time_in_hold_is_no_wait(grid: Grid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit()
    grid.pass_time(minutes=1)
    grid.change(JobChange.HOLD, job_id)
    grid.pass_time(minutes=30)
    grid.change(JobChange.RELEASE, job_id)
    start(grid, pilot, job_id, 2)
    (waiting,) = grid.submit()
    assert waits_of(grid, waiting) == ([2], [2])


@pytest.mark.parametrize(
    ("place", "index"), [("owner", "ix_jobs_owner_id"), ("leases", "ix_jobs_timed"), ("ends", "ix_jobs_ended")]
)
def test_recent_jobs_are_found_by_an_index(grid: Grid, place: str, index: str) -> None:
    (job_id,) = grid.submit()
    task_queue = grid.state.waiting.task_queue(grid.job(job_id).task_queue_id)
    assert task_queue is not None

    def look(transaction: Transaction) -> object:
        return recent_jobs(transaction.session, place, task_queue.traits, transaction.now - DAY)

    plan = plan_of(grid.database, look)
    assert index in plan
    assert "TEMP B-TREE" not in plan  # PostgreSQL sorts the few rows of a test
