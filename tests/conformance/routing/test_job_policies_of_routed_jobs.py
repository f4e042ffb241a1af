"""Rules for jobs that routers hold: demand, server downtime, policies, retention, health."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from pilotage.job_description import JobPolicy
from pilotage.resources.tree import QueueId
from pilotage.values.attempts import Outcome
from pilotage_server.core.health.black_holes import Location, LocationLevel
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.retention import REMOVALS
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.startup.sync import sync_events
from pilotage_server.storage.attempts import load_ended
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.events import feed_bounds
from support.grid import LONG, Grid, PolicyGrid
from support.routers import Router, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


def test_routed_job_is_no_demand_until_it_returns(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    assert demand_of(grid) == 0
    router.report(job_id, Outcome.DECLINED)
    assert demand_of(grid) == 1


def demand_of(grid: Grid) -> int:
    """Return the number of jobs that wait for pilots."""
    demands = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)])).demands
    return sum(demand.waiting for demand in demands)


def test_downtime_of_servers_does_not_end_routed_jobs(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.sweep()
    grid.clock.advance(timedelta(days=3))
    assert grid.sweep().gap == timedelta(days=3)
    router.finish(job_id)
    assert grid.job(job_id).state is JobState.DONE


def test_returned_job_notifies_waiting_listeners(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.change(JobChange.RESCHEDULE, job_id)
    published: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: published.append(count))
    router.report(job_id, Outcome.KILLED)
    assert published == [1]


def test_unwanted_routed_job_sends_no_pilot_command(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    stamps: list[str] = []
    grid.state.command_listeners.append(stamps.append)
    grid.change(JobChange.REMOVE, job_id)
    assert stamps == []


def test_periodic_remove_applies_to_routed_job(grid: PolicyGrid, router: Router) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_remove='RouteName == "north" && JobStatus == 2'))
    router.take(job_id)
    assert grid.evaluate_changed() == []
    router.start(job_id)
    assert grid.evaluate_changed() == [job_id]
    assert router.unwanted() == [(job_id, 1)]


def test_removed_job_is_kept_until_its_routed_job_ends(grid: Grid, router: Router) -> None:
    removed, done = grid.submit(count=2)
    router.take(removed, done)
    grid.change(JobChange.REMOVE, removed)
    router.finish(done)
    grid.pass_time(days=400)
    clean(grid)
    assert grid.jobs([removed, done]).keys() == {removed}
    assert (router.unwanted(), routed_job_count(grid)) == ([(removed, 1)], 1)
    router.report(removed, Outcome.KILLED)
    clean(grid)
    assert (grid.jobs([removed]), routed_job_count(grid)) == ({}, 0)


def clean(grid: Grid) -> None:
    """Remove all expired records."""
    for remove in REMOVALS:
        while grid.write(remove):
            pass


def routed_job_count(grid: Grid) -> int:
    """Return the number of routed jobs in the database."""
    query = select(func.count()).select_from(metadata.tables["copies"])
    return int(grid.read(lambda transaction, _: transaction.session.execute(query).scalar_one()))


def test_fast_failures_are_evidence_against_queue_and_named_node(grid: Grid, router: Router) -> None:
    without_node, with_node, remote = grid.submit(count=3)
    router.take(without_node, with_node)
    router.take(remote, target="far.example:4711")
    for job_id, node in ((without_node, ""), (with_node, "n42"), (remote, "")):
        router.finish(job_id, exit_code=1, node=node, started=grid.clock())
    _, newest = grid.read(lambda transaction, _: feed_bounds(transaction.session))
    ended = grid.read(lambda transaction, _: load_ended(transaction.session, 0, newest, timedelta(minutes=1)))
    assert all(attempt.failed for attempt in ended)
    locations = {attempt.key.location(level) for attempt in ended for level in LocationLevel} - {None}
    assert locations == {
        Location(LocationLevel.SITE, "CERN"),
        Location(LocationLevel.QUEUE, "CERN", "ce01", "long"),
        Location(LocationLevel.NODE, "CERN", node="n42"),
        Location(LocationLevel.SITE, "far.example:4711"),
    }


def test_other_server_syncs_routed_jobs_from_feed(postgresql_database: Database, clock: VirtualClock) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=3)
    other = grid.restarted()
    Router(grid).begin().take(*ids[:2])
    other.read(sync_events)
    assert sum(task_queue.count for task_queue in other.state.waiting.waiting()) == 1
