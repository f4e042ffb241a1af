"""Records of job routers that are gone for good: removed after the retention, never while they hold jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.routing import PublishedRoutes, RouteOutline
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.operations.jobs.retention import remove_gone_routers
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.routing.route_jobs import list_routes, put_routes
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.routers import Router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def a_router(grid: Grid, name: str = "router of sky") -> Router:
    """Return a router that is the leader for an hour and has published a route."""
    router = Router(grid, name)
    grid.database.write(lambda transaction: take_leadership(transaction, router.turn, timedelta(hours=1), "here"))
    table = PublishedRoutes((RouteOutline("north", "server far:1", max_jobs=1),))
    grid.database.write(lambda transaction: put_routes(transaction, router.turn, table))
    return router


def pass_retention(grid: Grid) -> None:
    grid.clock.advance(grid.state.rules.retention.finished_jobs + timedelta(hours=2))


def clean(grid: Grid) -> int:
    return grid.write(remove_gone_routers)


def router_names(grid: Grid) -> list[str]:
    return [routes.router for routes in grid.read(lambda transaction, _: list_routes(transaction))]


def test_removes_router_after_retention(grid: Grid) -> None:
    a_router(grid)
    assert clean(grid) == 0
    pass_retention(grid)
    a_router(grid, "another")
    assert (clean(grid), clean(grid)) == (1, 0)
    assert router_names(grid) == ["another"]


def test_keeps_router_that_renews_its_leadership(grid: Grid) -> None:
    router = a_router(grid)
    pass_retention(grid)
    router.begin()
    assert clean(grid) == 0
    assert router_names(grid) == [router.name]


def test_keeps_router_until_its_routed_jobs_end(grid: Grid) -> None:
    router = a_router(grid)
    held, taken = grid.submit(count=2)
    router.begin().take(held, taken)
    grid.change(JobChange.REMOVE, taken)
    router.stop()
    pass_retention(grid)
    assert clean(grid) == 0
    router.begin().finish(held)
    router.stop()
    assert clean(grid) == 0, "the end of the other routed job is not reported"
    router.begin().finish(taken)
    router.stop()
    assert clean(grid) == 1
    assert router_names(grid) == []
