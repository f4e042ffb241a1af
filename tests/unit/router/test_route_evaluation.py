"""Which routes a job may take, asked of many jobs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage_agents.router.core.route_selection import RouteEvaluator
from pilotage_agents.router.core.table import GRID, Route, RouteLimits, RouteTable


def a_route(requirements: str | None, own: Mapping[str, AdValue] | None = None) -> Route:
    return Route("A", requirements, own, "batch slurm", GRID, RouteLimits(max_jobs=0))


def a_judge(*routes: Route, constraint: str | None = None, most_remembered: int = 10) -> RouteEvaluator:
    return RouteEvaluator(RouteTable(routes, constraint=constraint, max_jobs=0), most_remembered)


def test_the_routes_are_named_by_their_places_whatever_they_have_already() -> None:
    judge = a_judge(a_route("Cpus > 4"), a_route(None), a_route("Cpus > 1"), constraint="Wants")
    assert judge.matching_routes({"wants": True, "CPUS": 2}) == (1, 2)
    assert judge.matching_routes({"wants": True, "CPUS": 8}) == (0, 1, 2)
    assert judge.matching_routes({"Cpus": 8}) == ()


@pytest.mark.parametrize("value", [1, 1.0, "true", False])
def test_a_value_that_is_only_like_true_is_told_from_it_though_that_was_judged_before(value: AdValue) -> None:
    judge = a_judge(a_route("Wants"))
    assert judge.matching_routes({"Wants": True}) == (0,)
    assert judge.matching_routes({"Wants": value}) == ()


def test_routes_that_ask_in_the_same_words_with_other_attributes_of_their_own_are_told_apart() -> None:
    asks = "queue =?= TARGET.Queue"
    judge = a_judge(a_route(asks, {"queue": "long"}), a_route(asks, {"Queue": "short"}), a_route(asks, {"Other": 1}))
    assert judge.matching_routes({"Queue": "short"}) == (1, 2)
    assert judge.matching_routes({"Queue": "long"}) == (0, 2)


def test_what_a_routes_own_attributes_lead_to_counts() -> None:
    judge = a_judge(a_route("Fits", {"Fits": Expression("TARGET.Cpus <= most"), "Most": Expression("Base * 2")}))
    assert judge.matching_routes({"Cpus": 4, "Base": 2}) == (0,)
    assert judge.matching_routes({"Cpus": 4, "Base": 1}) == ()


def test_an_attribute_of_the_job_may_look_at_any_other_one_and_at_the_routes() -> None:
    judge = a_judge(a_route("TARGET.Wants", {"Limit": 3}), a_route("TARGET.Wants", {"Limit": 4}))
    wants: dict[str, AdValue] = {"Wants": Expression("Cpus > 1 && Limit =!= 9")}
    assert judge.matching_routes({**wants, "Cpus": 2, "Limit": 9}) == ()
    assert judge.matching_routes({**wants, "Cpus": 2}) == (0, 1)
    assert judge.matching_routes({**wants, "Cpus": 1}) == ()
    assert judge.matching_routes({"Wants": Expression("Limit =?= 4")}) == (1,)


def test_requirements_that_look_up_a_text_see_all_of_the_job() -> None:
    judge = a_judge(a_route("eval(Which) =?= 3"))
    assert judge.matching_routes({"Which": "a", "a": 3}) == (0,)
    assert judge.matching_routes({"Which": "a", "a": 4}) == ()


def test_time_is_what_the_job_says_it_is() -> None:
    judge = a_judge(a_route("time() - QDate < 60"))
    assert judge.matching_routes({"QDate": 1000, "MyCurrentTime": 1030}) == (0,)
    assert judge.matching_routes({"QDate": 1000, "MyCurrentTime": 1090}) == ()


def test_judgements_are_right_also_when_they_are_no_longer_remembered() -> None:
    judge = a_judge(a_route("Cpus > 4"), most_remembered=2)
    for cpus in (1, 8, 3, 1, 9, 8, 2, 1):
        assert judge.matching_routes({"Cpus": cpus}) == ((0,) if cpus > 4 else ())
