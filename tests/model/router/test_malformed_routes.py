"""Any route text is read or rejected with its faults, and any route transforms a job or names the faulty statement."""

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

operands = st.sampled_from([*NAMES, *VALUES])
statements = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(VERBS), operands, operands),
    st.builds("{} = {}".format, operands, operands),
    st.text(alphabet="aA $(:)=/\\\"'x1.!;{}[]", max_size=20),
)
assignments = st.builds(
    "{}{} = {}".format, st.sampled_from(["copy_", "delete_", "set_", "eval_set_", "", "'"]), operands, operands
)


def read(lines: list[str]) -> Route | None:
    """Return the route of these statements, None = it is rejected; each fault has a reason."""
    try:
        return read_route("A", "\n".join(lines), {"most": "$(size)"}, RouteLimits())
    except InvalidInputError as error:
        rejection = error
    assert all(violation.why for violation in rejection.violations)
    return None


def transforms_job(route: Route) -> bool:
    """Return whether the route transforms a job; if not, each fault names its statement."""
    try:
        routed_ad(JOB, route, RouteTable((route,), macros={"size": "3"}))
    except InvalidRoutesError as error:
        rejection = error
    else:
        return True
    assert all(violation.where.startswith("A, ") for violation in rejection.violations)
    return False


@settings(deadline=None)
@given(st.lists(statements, max_size=12))
def test_programare_read_and_applied_or_rejected(lines: list[str]) -> None:
    for program in (lines, [line for line in lines if read([line])]):
        if route := read(program):
            transforms_job(route)


@settings(deadline=None)
@given(st.lists(assignments, max_size=6))
def test_ads_are_read_and_applied_or_rejected(lines: list[str]) -> None:
    try:
        routes, _ = routes_of(read_ads('[name = "A"; ' + "; ".join(lines) + "]"), RouteLimits())
    except InvalidInputError as error:
        rejection = error
    else:
        for route in routes:
            transforms_job(route)
        return
    assert all(violation.where for violation in rejection.violations)


@pytest.mark.parametrize("statement", ["DELETE /.*/", r"RENAME /([a-z]*)/ x_\1", r"COPY /Owner|List/ y_\0"])
def test_attributes_with_quoted_names_are_transformed(statement: str) -> None:
    route = read([statement])
    assert route is not None
    assert transforms_job(route)
