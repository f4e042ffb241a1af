"""The route that a job takes, and the obstacles on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.routes import JobScopes, ObstacleKind, RouteObstacle
from pilotage_agents.router.core.failure_rate import FailureRate
from pilotage_agents.router.core.route_selection import Occupancy, chosen_route, route_decisions
from pilotage_agents.router.core.table import (
    GRID,
    QueueTarget,
    Route,
    RouteLimits,
    RouteTable,
    ServerTarget,
    Targets,
    target_key,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB: dict[str, AdValue] = {"WantJobRouter": True, "Owner": "ann", "queue": "long"}


def a_route(
    name: str = "A", requirements: str | None = None, own: Mapping[str, AdValue] | None = None, **limits: int
) -> Route:
    return Route(name, requirements, own, "batch slurm", GRID, RouteLimits(**limits))


def obstacles_of(
    table: RouteTable, job: Mapping[str, AdValue], occupied: Mapping[str, Occupancy] | None = None
) -> dict[str, tuple[RouteObstacle, ...]]:
    found = route_decisions(table, JobScopes.of(job), occupied or {})
    return {verdict.route.name: verdict.obstacles for verdict in found}


def test_obstacle_names_failed_clause_of_requirements() -> None:
    table = RouteTable(
        (a_route("A", 'WantJobRouter && Owner == "ann"'), a_route("B", 'WantJobRouter && Owner == "bob"'))
    )
    found = obstacles_of(table, JOB)
    assert found["A"] == ()
    assert found["B"] == (RouteObstacle(ObstacleKind.REQUIREMENTS, 'Owner == "bob" is false (Owner = "ann")'),)


@pytest.mark.parametrize("value", [1, "true", "false", False])
def test_requirements_must_be_exactly_true(value: AdValue) -> None:
    assert obstacles_of(RouteTable((a_route("A", "WantJobRouter"),)), {"WantJobRouter": value})["A"] != ()


def test_requirements_of_ad_have_route_as_my_and_job_as_target() -> None:
    def obstacles(requirements: str, own: Mapping[str, AdValue] | None) -> tuple[RouteObstacle, ...]:
        return obstacles_of(RouteTable((a_route("A", requirements, own),)), JOB)["A"]

    own = {"queue": "not-long"}
    assert obstacles("other.WantJobRouter", own) == ()
    assert obstacles("WantJobRouter", own) == ()
    assert obstacles('TARGET.queue =?= "long"', own) == ()
    assert obstacles('queue =?= "long"', own) != ()  # the trap that HTCondor's documentation warns of
    assert obstacles('queue =?= "long"', None) == ()
    assert obstacles("TARGET.queue =?= MY.queue", None) == ()


def test_source_constraint_applies_to_all_routes() -> None:
    table = RouteTable((a_route("A"), a_route("B")), constraint="target.WantJobRouter =?= true")
    assert obstacles_of(table, JOB) == {"A": (), "B": ()}
    (obstacle,) = obstacles_of(table, {})["B"]
    assert obstacle.kind is ObstacleKind.CONSTRAINT


def test_route_is_full_at_its_limits() -> None:
    table = RouteTable((a_route(max_jobs=10, max_idle_jobs=3),))
    assert obstacles_of(table, {}, {"A": Occupancy(9, 2)})["A"] == ()
    assert obstacles_of(table, {}, {"A": Occupancy(10, 3)})["A"] == (
        RouteObstacle(ObstacleKind.FULL, "10 of 10 copies on the route"),
        RouteObstacle(ObstacleKind.IDLE_LIMIT, "3 of 3 copies do not run"),
    )
    unlimited = RouteTable((replace(table.routes[0], limits=RouteLimits(10, None)),))
    assert obstacles_of(unlimited, {}, {"A": Occupancy(9, 9)})["A"] == ()


def test_table_limit_applies_to_all_routes() -> None:
    table = RouteTable((a_route("A"), a_route("B")), max_jobs=5)
    occupied = {"A": Occupancy(2), "B": Occupancy(3)}
    assert obstacles_of(table, {}, occupied)["A"] == (RouteObstacle(ObstacleKind.FULL, "5 of 5 copies of all routes"),)
    assert obstacles_of(table, {}, occupied | {"B": Occupancy(2)})["A"] == ()


def test_throttled_route_has_obstacle() -> None:
    rate = FailureRate(0.01, NOON, quota=6.0, sent=6)
    found = obstacles_of(RouteTable((a_route(),)), {}, {"A": Occupancy(rate=rate)})
    assert found["A"] == (RouteObstacle(ObstacleKind.THROTTLED, "6 sent of 6 in 600 s"),)


def test_selects_routes_in_turn_or_always_the_first() -> None:
    table = RouteTable((a_route("A"), a_route("B", "false"), a_route("C"), a_route("D")))
    found = route_decisions(table, JobScopes.of({}), {})
    chosen = [chosen_route(found, round_robin=True, turn=turn) for turn in range(4)]
    assert [route.name for route in chosen if route] == ["A", "C", "D", "A"]
    first = [chosen_route(found, round_robin=False, turn=turn) for turn in range(2)]
    assert [route.name for route in first if route] == ["A", "A"]
    assert chosen_route(found[1:2], round_robin=True, turn=0) is None


def test_skips_full_routes() -> None:
    table = RouteTable(tuple(a_route(name, max_jobs=10, max_idle_jobs=3) for name in "ABCD"), round_robin=False)
    occupied: dict[str, Occupancy] = {}
    throttled = Occupancy(rate=FailureRate(0.01, NOON, quota=1.0, sent=1))
    for name, occupancy in zip("ABCD", (Occupancy(10), Occupancy(3, 3), throttled, Occupancy(10)), strict=True):
        route = chosen_route(route_decisions(table, JobScopes.of(JOB), occupied), round_robin=False, turn=0)
        assert route is not None
        assert route.name == name
        occupied[name] = occupancy
    assert chosen_route(route_decisions(table, JobScopes.of(JOB), occupied), round_robin=False, turn=0) is None


def test_target_is_found_by_name_before_grid_resource() -> None:
    queue, server = QueueTarget(QueueId("S", "ce", "q")), ServerTarget(("host:1",))
    table = RouteTable((a_route("A"), a_route("B"), replace(a_route("C"), grid_resource="")))
    with_targets = table.with_targets(Targets({target_key("b"): server}, {target_key("Batch  slurm"): queue}))
    assert [(route.name, route.target) for route in with_targets.routes] == [("A", queue), ("B", server)]
    assert [left_out.name for left_out in with_targets.left_out] == ["C"]
    assert [str(target) for target in (queue, server)] == ["queue S/ce/q", "server host:1"]
