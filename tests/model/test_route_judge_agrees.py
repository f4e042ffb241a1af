"""The quick judgement of which routes a job may take is that of the slow one, which gives reasons."""

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

PLAIN: list[AdValue] = [True, False, 0, 1, 1.0, 5, 4000, "", "ann", "true", ("a", "Analysis")]
OTHERS: list[AdValue] = [Expression("undefined"), Expression("RequestCpus * 2"), Expression("TARGET.queue"), {"a": 1}]


def slowly_fulfilled(table: RouteTable, job: Mapping[str, AdValue]) -> tuple[int, ...]:
    return tuple(place for place, said in enumerate(route_decisions(table, JobScopes.of(job), {})) if said.is_accepted)


def texts_of(table: RouteTable) -> Iterator[str]:
    yield table.constraint or ""
    for route in table.routes:
        yield route.requirements or ""
        yield from map(expression_text, (route.own_attributes or {}).values())


def jobs_about(table: RouteTable) -> st.SearchStrategy[dict[str, AdValue]]:
    """Return jobs that say something of what the table's expressions are about."""
    texts = list(texts_of(table))
    found = [references(text) for text in texts]
    names = sorted({"queue", "RequestCpus"}.union(*(each.in_my | each.target for each in found)))
    spelled = {token.text[1:-1] for text in texts for token in tokens(text) if token.kind is TokenKind.STRING}
    values = st.sampled_from([*PLAIN, *PLAIN, *OTHERS, *sorted(spelled)])
    return st.dictionaries(st.sampled_from(names), values).map(lambda said: {"WantJobRouter": True} | said)


def real_tables() -> Iterator[RouteTable]:
    for path in ROUTERS:
        try:
            table = constrained(path)
        except InvalidInputError:
            continue
        if table.routes:
            yield table


def answers_agreed_on(table: RouteTable, most_jobs: int) -> set[bool]:
    """Return whether some jobs could go somewhere, after both have judged each of them alike."""
    judge, answers = RouteEvaluator(table), set[bool]()

    @settings(max_examples=most_jobs, deadline=None)
    @given(job=jobs_about(table))
    def agrees(job: dict[str, AdValue]) -> None:
        slow = slowly_fulfilled(table, job)
        assert [judge.matching_routes(job), judge.matching_routes(job)] == [slow, slow]
        answers.add(bool(slow))

    agrees()
    return answers


@pytest.mark.usefixtures("shared_data")
def test_the_quick_judgement_is_that_of_the_verdicts_for_every_real_table() -> None:
    assert set[bool]().union(*(answers_agreed_on(table, 30) for table in real_tables())) == {True, False}


@pytest.mark.usefixtures("shared_data")
def test_the_quick_judgement_is_that_of_the_verdicts_for_all_real_routes_together() -> None:
    table = RouteTable(tuple(route for table in real_tables() for route in table.routes), constraint="WantJobRouter")
    assert answers_agreed_on(table, 100) == {True, False}
