"""What the rules over jobs make of those that routers hold, on every database: time, policies, retention, health."""

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


def test_a_routed_job_is_no_demand_and_one_that_comes_back_is_again(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    assert wanted(grid) == 0
    router.report(job_id, Outcome.DECLINED)
    assert wanted(grid) == 1


def wanted(grid: Grid) -> int:
    """Return how many jobs wait for pilots."""
    demands = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)])).demands
    return sum(demand.waiting for demand in demands)


def test_time_without_any_server_takes_no_job_from_its_router(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.sweep()
    grid.clock.advance(timedelta(days=3))
    assert grid.sweep().gap == timedelta(days=3)
    router.finish(job_id)
    assert grid.job(job_id).state is JobState.DONE


def test_who_waits_is_woken_when_a_router_gives_a_job_back(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.change(JobChange.RESCHEDULE, job_id)
    told: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: told.append(count))
    router.report(job_id, Outcome.KILLED)
    assert told == [1]


def test_no_pilot_is_called_for_a_copy_that_is_wanted_no_more(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    called: list[str] = []
    grid.state.command_listeners.append(called.append)
    grid.change(JobChange.REMOVE, job_id)
    assert called == []


def test_a_policy_removes_a_routed_job_and_its_copy_with_it(grid: PolicyGrid, router: Router) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_remove='RouteName == "north" && JobStatus == 2'))
    router.take(job_id)
    assert grid.look() == []
    router.start(job_id)
    assert grid.look() == [job_id]
    assert router.unwanted() == [(job_id, 1)]


def test_a_removed_job_is_kept_until_its_router_has_said_that_the_copy_is_no_more(grid: Grid, router: Router) -> None:
    removed, done = grid.submit(count=2)
    router.take(removed, done)
    grid.change(JobChange.REMOVE, removed)
    router.finish(done)
    grid.pass_time(days=400)
    clean(grid)
    assert grid.jobs([removed, done]).keys() == {removed}
    assert (router.unwanted(), copies(grid)) == ([(removed, 1)], 1)
    router.report(removed, Outcome.KILLED)
    clean(grid)
    assert (grid.jobs([removed]), copies(grid)) == ({}, 0)


def clean(grid: Grid) -> None:
    """Remove all that is past its time."""
    for remove in REMOVALS:
        while grid.write(remove):
            pass


def copies(grid: Grid) -> int:
    """Return how many copies the server knows of."""
    query = select(func.count()).select_from(metadata.tables["copies"])
    return int(grid.read(lambda transaction, _: transaction.session.execute(query).scalar_one()))


def test_copies_that_fail_fast_speak_against_their_queue_and_against_a_node_that_was_named(
    grid: Grid, router: Router
) -> None:
    nowhere, somewhere, far = grid.submit(count=3)
    router.take(nowhere, somewhere)
    router.take(far, target="far.example:4711")
    for job_id, node in ((nowhere, ""), (somewhere, "n42"), (far, "")):
        router.finish(job_id, exit_code=1, node=node, started=grid.clock())
    _, newest = grid.read(lambda transaction, _: feed_bounds(transaction.session))
    ended = grid.read(lambda transaction, _: load_ended(transaction.session, 0, newest, timedelta(minutes=1)))
    assert all(each.failed for each in ended)
    places = {place for each in ended for level in LocationLevel if (place := each.key.location(level)) is not None}
    assert places == {
        Location(LocationLevel.SITE, "CERN"),
        Location(LocationLevel.QUEUE, "CERN", "ce01", "long"),
        Location(LocationLevel.NODE, "CERN", node="n42"),
        Location(LocationLevel.SITE, "far.example:4711"),
    }


def test_another_server_knows_that_a_routed_job_waits_no_more(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=3)
    other = grid.restarted()
    Router(grid).begin().take(*ids[:2])
    other.read(sync_events)
    assert sum(each.count for each in other.state.waiting.waiting()) == 1
