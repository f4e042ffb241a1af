"""What job routers have told goes when they are gone for good, on every database, and never while they have copies."""

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
    """Return a router that has its turn for an hour, and has told of a route."""
    router = Router(grid, name)
    grid.database.write(lambda transaction: take_leadership(transaction, router.turn, timedelta(hours=1), "here"))
    table = PublishedRoutes((RouteOutline("north", "server far:1", max_jobs=1),))
    grid.database.write(lambda transaction: put_routes(transaction, router.turn, table))
    return router


def pass_retention(grid: Grid) -> None:
    grid.clock.advance(grid.state.rules.retention.finished_jobs + timedelta(hours=2))


def clean(grid: Grid) -> int:
    return grid.write(remove_gone_routers)


def known(grid: Grid) -> list[str]:
    return [told.router for told in grid.read(lambda transaction, _: list_routes(transaction))]


def test_a_router_of_which_nothing_was_heard_for_long_is_shown_no_more(grid: Grid) -> None:
    a_router(grid)
    assert clean(grid) == 0
    pass_retention(grid)
    a_router(grid, "another")
    assert (clean(grid), clean(grid)) == (1, 0)
    assert known(grid) == ["another"]


def test_a_router_that_has_nothing_new_to_tell_is_shown_as_long_as_it_takes_its_turn(grid: Grid) -> None:
    router = a_router(grid)
    pass_retention(grid)
    router.begin()
    assert clean(grid) == 0
    assert known(grid) == [router.name]


def test_a_router_with_copies_is_shown_until_their_end_is_told(grid: Grid) -> None:
    router = a_router(grid)
    held, taken = grid.submit(count=2)
    router.begin().take(held, taken)
    grid.change(JobChange.REMOVE, taken)
    router.stop()
    pass_retention(grid)
    assert clean(grid) == 0
    router.begin().finish(held)
    router.stop()
    assert clean(grid) == 0, "nobody has said that the copy of the other one is no more"
    router.begin().finish(taken)
    router.stop()
    assert clean(grid) == 1
    assert known(grid) == []
