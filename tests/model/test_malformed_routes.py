"""Whatever a route says, it is read or refused with its place, and makes a copy or is told why not: nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.classads.library import AdValue, Expression
from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.classad_tables import read_ads, routes_of
from pilotage_agents.router.core.table import InvalidRoutesError, Route, RouteLimits, RouteTable
from pilotage_agents.router.core.transforms import read_route

VERBS = ["SET", "DEFAULT", "EVALSET", "EVALMACRO", "COPY", "RENAME", "DELETE", "if", "elif", "else", "endif", "! if"]
NAMES = [
    "A", "Owner", "MY.Owner", "9", "", "/.*/", "/(O)w/", "/(/", "size", "x y", "REQUIREMENTS", "MaxJobs", "UNIVERSE",
]  # fmt: skip
VALUES = [
    "1", "1 +", '"a"', '"', "true", "defined", "defined MY.Owner", "! defined size", "Owner", "$(size)", "$(MY.Owner)",
    "$(MY.Gone)", "$(MY.Gone:$(size:1))", "$(", "$(x", "$(x:(1)", "$INT(size)", "$INT(MY.Owner)", "$F(MY.Owner)",
    "$$(x)", "$CHOICE(1,2)", r"\1_x", r"\9", "eval(Owner)", "1 2 3", "a.b", "{1, 2}", "[x = 1]", "'q n'",
    "/*", "//", "", "-",
]  # fmt: skip
JOB: dict[str, AdValue] = {
    "Owner": 'a$(size)"',
    "RequestCpus": 4,
    "Long name": True,
    "Twice": Expression("RequestCpus * 2"),
    "List": (1, "a"),
}

words = st.sampled_from([*NAMES, *VALUES])
statements = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(VERBS), words, words),
    st.builds("{} = {}".format, words, words),
    st.text(alphabet="aA $(:)=/\\\"'x1.!;{}[]", max_size=20),
)
assignments = st.builds(
    "{}{} = {}".format, st.sampled_from(["copy_", "delete_", "set_", "eval_set_", "", "'"]), words, words
)


def read(lines: list[str]) -> Route | None:
    """Return the route that a program says, None = it is refused; each fault says why."""
    try:
        return read_route("A", "\n".join(lines), {"most": "$(size)"}, RouteLimits())
    except InvalidInputError as error:
        refused = error
    assert all(violation.why for violation in refused.violations)
    return None


def makes_a_copy(route: Route) -> bool:
    """Return whether a job has a copy that goes along the route; where it has none, the statement is told."""
    try:
        routed_ad(JOB, route, RouteTable((route,), macros={"size": "3"}))
    except InvalidRoutesError as error:
        refused = error
    else:
        return True
    assert all(violation.where.startswith("A, ") for violation in refused.violations)
    return False


@settings(deadline=None)
@given(st.lists(statements, max_size=12))
def test_a_program_is_read_and_makes_a_copy_or_is_refused(lines: list[str]) -> None:
    for program in (lines, [line for line in lines if read([line])]):
        if route := read(program):
            makes_a_copy(route)


@settings(deadline=None)
@given(st.lists(assignments, max_size=6))
def test_an_ad_is_read_and_makes_a_copy_or_is_refused(said: list[str]) -> None:
    try:
        found, _ = routes_of(read_ads('[name = "A"; ' + "; ".join(said) + "]"), RouteLimits())
    except InvalidInputError as error:
        refused = error
    else:
        assert all(makes_a_copy(route) in (True, False) for route in found)
        return
    assert all(violation.where for violation in refused.violations)


@pytest.mark.parametrize("statement", ["DELETE /.*/", r"RENAME /([a-z]*)/ x_\1", r"COPY /Owner|List/ y_\0"])
def test_attributes_whose_names_need_quotes_are_taken_for_what_they_are(statement: str) -> None:
    route = read([statement])
    assert route is not None
    assert makes_a_copy(route)
