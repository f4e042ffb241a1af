"""The explanation of routes for a job: whether each route takes it, or all of its obstacles."""

from __future__ import annotations

import pytest

from pilotage.routes import ObstacleKind
from pilotage.values.attempts import Outcome
from pilotage.values.routing import PublishedRoutes, RouteOutline
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.routing.explain import RoutesExplained, explain_routes
from pilotage_server.operations.routing.route_jobs import put_routes
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, a_tree
from support.jobs import an_operator
from support.routers import SHORT, Router, a_copy, router
from support.sql_statements import statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def publish(router: Router, *routes: RouteOutline, constraint: str | None = None, max_jobs: int | None = None) -> None:
    table = PublishedRoutes(routes, constraint, max_jobs)
    router.grid.database.write(lambda transaction: put_routes(transaction, an_operator(), router.turn, table))


def explained(grid: Grid, job_id: int) -> RoutesExplained:
    return grid.read(lambda transaction, state: explain_routes(transaction, state, an_operator(), job_id))


def obstacles_of(grid: Grid, job_id: int) -> list[list[tuple[ObstacleKind, str]]]:
    return [
        [(obstacle.kind, obstacle.why) for obstacle in verdict.obstacles]
        for verdict in explained(grid, job_id).verdicts
    ]


def test_lists_all_obstacles_of_a_route(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(attributes={"WantRoute": False})
    north = RouteOutline("north", f"queue {LONG}", "WantRoute", max_jobs=2, max_idle_jobs=1, copies=2, idle=1)
    own = RouteOutline("own", "server far:1", "MY.Big && TARGET.WantRoute =?= false", "[Big = true]", max_jobs=1)
    publish(router, north, own)
    assert obstacles_of(grid, job_id) == [
        [
            (ObstacleKind.REQUIREMENTS, "WantRoute is false"),
            (ObstacleKind.FULL, "2 of 2 copies on the route"),
            (ObstacleKind.IDLE_LIMIT, "1 of 1 copies do not run"),
        ],
        [],
    ]
    publish(router, own, constraint="WantRoute", max_jobs=0)
    assert obstacles_of(grid, job_id) == [
        [(ObstacleKind.CONSTRAINT, "WantRoute is false"), (ObstacleKind.FULL, "0 of 0 copies of all routes")]
    ]


def test_ineligible_queue_is_an_obstacle(grid: Grid, router: Router) -> None:
    grid.put(a_tree(LONG, Memory=1000))
    (job_id,) = grid.submit(request_memory_mib=4000)
    publish(router, *(RouteOutline("north", target, max_jobs=1) for target in (f"queue {LONG}", f"queue {SHORT}")))
    (((kind, why),), ((_, unknown),)) = obstacles_of(grid, job_id)
    assert (kind, unknown) == (ObstacleKind.NOT_ELIGIBLE, f"the active tree has no queue {SHORT}")
    assert why == router.refusal(a_copy(job_id)), "the explanation equals the refusal"


def test_expression_beyond_limits_is_an_obstacle(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    long = " && ".join(["true"] * 2000)
    publish(
        router,
        RouteOutline("long", "server far:1", long, max_jobs=1),
        RouteOutline("broken", "server far:1", "true", "[Big = ", max_jobs=1),
        constraint="random() < 2",
    )
    (_, (_, is_long)), (_, (_, is_broken)) = obstacles_of(grid, job_id)
    assert is_long.startswith("cannot be judged here: it is 15996 bytes long")
    assert is_broken.startswith("the route's ad cannot be read here")
    assert obstacles_of(grid, job_id)[0][0][1].startswith("cannot be judged here: random functions")


def test_explains_matched_job_and_its_routed_job(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    assert explained(grid, job_id).copy is None
    router.take(job_id)
    found = explained(grid, job_id)
    assert found.obstacle == "it is MATCHED"
    assert found.copy is not None
    assert (found.copy.copy.key, found.copy.unwanted) == ((job_id, 1), "")
    router.report(job_id, Outcome.EVICTED, reason="it vanished")
    found = explained(grid, job_id)
    assert found.obstacle == ""
    assert found.copy is not None
    assert "has ended (evicted: it vanished)" in found.copy.unwanted


def test_throttled_closed_and_full_routes_are_obstacles(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", "ce01", "long", "vo", "lhcb", 1)
    grid = Grid(database, clock, LONG, SHORT, rules=Rules(running_limits=(limit,)))
    router = Router(grid).begin()
    running, waiting = grid.submit(count=2)
    assert router.take(running) == [running]
    routes = [RouteOutline(name, f"queue {queue}", max_jobs=9) for name, queue in (("north", LONG), ("south", SHORT))]
    east = RouteOutline("east", "server far:1", max_jobs=9, throttled="19 failed in 600 s")
    publish(router, *routes, east, RouteOutline("west", "server gone:1", max_jobs=9, closed="it cannot be opened"))
    assert obstacles_of(grid, waiting) == [
        [(ObstacleKind.NOT_ELIGIBLE, f"the limit is reached: {limit}")],
        [],
        [(ObstacleKind.THROTTLED, "19 failed in 600 s")],
        [(ObstacleKind.CLOSED, "it cannot be opened")],
    ]


def test_number_of_statements_is_independent_of_routes(database: Database, clock: VirtualClock) -> None:
    limits = tuple(RunningLimit("CERN", "ce01", queue, "vo", "lhcb", 1) for queue in ("long", "short"))
    grid = Grid(database, clock, LONG, SHORT, rules=Rules(running_limits=limits))
    router = Router(grid).begin()
    (job_id,) = grid.submit()

    def statement_count(routes: int) -> int:
        queues = (LONG, SHORT) * routes
        publish(router, *(RouteOutline(f"r{n}", f"queue {queue}", max_jobs=1) for n, queue in enumerate(queues)))
        with statements(database) as executed:
            assert len(obstacles_of(grid, job_id)) == 2 * routes
        return len(executed)

    assert statement_count(50) == statement_count(1) > 0
