"""`RouteEvaluator` finds the same routes as `route_decisions`, which evaluates slowly and gives reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.references import references
from pilotage.classads.tokens import TokenKind, tokens
from pilotage.errors import InvalidInputError
from pilotage.routes import JobScopes
from pilotage_agents.router.core.fields import expression_text
from pilotage_agents.router.core.route_selection import RouteEvaluator, route_decisions
from pilotage_agents.router.core.table import RouteTable
from support.route_tables import ROUTERS, constrained

VALUES: list[AdValue] = [True, False, 0, 1, 1.0, 5, 4000, "", "ann", "true", ("a", "Analysis")]
UNUSUAL_VALUES: list[AdValue] = [
    Expression("undefined"),
    Expression("RequestCpus * 2"),
    Expression("TARGET.queue"),
    {"a": 1},
]


def accepted_routes(table: RouteTable, job: Mapping[str, AdValue]) -> tuple[int, ...]:
    return tuple(
        number for number, decision in enumerate(route_decisions(table, JobScopes.of(job), {})) if decision.is_accepted
    )


def texts_of(table: RouteTable) -> Iterator[str]:
    yield table.constraint or ""
    for route in table.routes:
        yield route.requirements or ""
        yield from map(expression_text, (route.own_attributes or {}).values())


def jobs_for(table: RouteTable) -> st.SearchStrategy[dict[str, AdValue]]:
    """Return jobs with attributes that the table's expressions refer to."""
    texts = list(texts_of(table))
    found = [references(text) for text in texts]
    names = sorted({"queue", "RequestCpus"}.union(*(each.in_my | each.target for each in found)))
    spelled = {token.text[1:-1] for text in texts for token in tokens(text) if token.kind is TokenKind.STRING}
    values = st.sampled_from([*VALUES, *VALUES, *UNUSUAL_VALUES, *sorted(spelled)])
    return st.dictionaries(st.sampled_from(names), values).map(lambda attributes: {"WantJobRouter": True} | attributes)


def real_tables() -> Iterator[RouteTable]:
    for path in ROUTERS:
        try:
            table = constrained(path)
        except InvalidInputError:
            continue
        if table.routes:
            yield table


def acceptance_of_jobs(table: RouteTable, most_jobs: int) -> set[bool]:
    """Compare both evaluations on random jobs; return whether jobs have been accepted, rejected or both."""
    evaluator, answers = RouteEvaluator(table), set[bool]()

    @settings(max_examples=most_jobs, deadline=None)
    @given(job=jobs_for(table))
    def agrees(job: dict[str, AdValue]) -> None:
        expected = accepted_routes(table, job)
        assert [evaluator.matching_routes(job), evaluator.matching_routes(job)] == [expected, expected]
        answers.add(bool(expected))

    agrees()
    return answers


@pytest.mark.usefixtures("shared_data")
def test_evaluators_agree_for_every_real_table() -> None:
    assert set[bool]().union(*(acceptance_of_jobs(table, 30) for table in real_tables())) == {True, False}


@pytest.mark.usefixtures("shared_data")
def test_evaluators_agree_for_all_real_routes_in_one_table() -> None:
    table = RouteTable(tuple(route for table in real_tables() for route in table.routes), constraint="WantJobRouter")
    assert acceptance_of_jobs(table, 100) == {True, False}
