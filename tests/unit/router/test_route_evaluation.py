"""The routes whose requirements a job fulfils, evaluated for many jobs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage_agents.router.core.route_selection import RouteEvaluator
from pilotage_agents.router.core.table import GRID, Route, RouteLimits, RouteTable


def a_route(requirements: str | None, attributes: Mapping[str, AdValue] | None = None) -> Route:
    return Route("A", requirements, attributes, "batch slurm", GRID, RouteLimits(max_jobs=0))


def an_evaluator(*routes: Route, constraint: str | None = None, cache_size: int = 10) -> RouteEvaluator:
    return RouteEvaluator(RouteTable(routes, constraint=constraint, max_jobs=0), cache_size)


def test_returns_positions_of_matching_routes() -> None:
    evaluator = an_evaluator(a_route("Cpus > 4"), a_route(None), a_route("Cpus > 1"), constraint="Wants")
    assert evaluator.matching_routes({"wants": True, "CPUS": 2}) == (1, 2)
    assert evaluator.matching_routes({"wants": True, "CPUS": 8}) == (0, 1, 2)
    assert evaluator.matching_routes({"Cpus": 8}) == ()


@pytest.mark.parametrize("value", [1, 1.0, "true", False])
def test_cache_distinguishes_true_from_similar_values(value: AdValue) -> None:
    evaluator = an_evaluator(a_route("Wants"))
    assert evaluator.matching_routes({"Wants": True}) == (0,)
    assert evaluator.matching_routes({"Wants": value}) == ()


def test_equal_requirements_with_different_route_attributes_differ() -> None:
    same = "queue =?= TARGET.Queue"
    evaluator = an_evaluator(
        a_route(same, {"queue": "long"}),
        a_route(same, {"Queue": "short"}),
        a_route(same, {"Other": 1}),
    )
    assert evaluator.matching_routes({"Queue": "short"}) == (1, 2)
    assert evaluator.matching_routes({"Queue": "long"}) == (0, 2)


def test_follows_references_through_route_attributes() -> None:
    evaluator = an_evaluator(
        a_route("Fits", {"Fits": Expression("TARGET.Cpus <= most"), "Most": Expression("Base * 2")})
    )
    assert evaluator.matching_routes({"Cpus": 4, "Base": 2}) == (0,)
    assert evaluator.matching_routes({"Cpus": 4, "Base": 1}) == ()


def test_job_attributes_may_refer_to_job_and_route() -> None:
    evaluator = an_evaluator(a_route("TARGET.Wants", {"Limit": 3}), a_route("TARGET.Wants", {"Limit": 4}))
    wants: dict[str, AdValue] = {"Wants": Expression("Cpus > 1 && Limit =!= 9")}
    assert evaluator.matching_routes({**wants, "Cpus": 2, "Limit": 9}) == ()
    assert evaluator.matching_routes({**wants, "Cpus": 2}) == (0, 1)
    assert evaluator.matching_routes({**wants, "Cpus": 1}) == ()
    assert evaluator.matching_routes({"Wants": Expression("Limit =?= 4")}) == (1,)


def test_eval_in_requirements_sees_whole_job() -> None:
    evaluator = an_evaluator(a_route("eval(Which) =?= 3"))
    assert evaluator.matching_routes({"Which": "a", "a": 3}) == (0,)
    assert evaluator.matching_routes({"Which": "a", "a": 4}) == ()


def test_time_is_my_current_time_of_the_job() -> None:
    evaluator = an_evaluator(a_route("time() - QDate < 60"))
    assert evaluator.matching_routes({"QDate": 1000, "MyCurrentTime": 1030}) == (0,)
    assert evaluator.matching_routes({"QDate": 1000, "MyCurrentTime": 1090}) == ()


def test_evicted_cache_entries_are_evaluated_again() -> None:
    evaluator = an_evaluator(a_route("Cpus > 4"), cache_size=2)
    for cpus in (1, 8, 3, 1, 9, 8, 2, 1):
        assert evaluator.matching_routes({"Cpus": cpus}) == ((0,) if cpus > 4 else ())
