"""Files of routes, with HTCondor's knobs of today and of yesterday."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.condor_config import InvalidConfigurationError
from pilotage.errors import InvalidInputError
from pilotage_agents.core.route_copies import copy_of
from pilotage_agents.core.route_table import LeftOut, Limits, RouteTable, Transform
from pilotage_agents.route_files import read_route_file

Reading = Callable[..., RouteTable]


@pytest.fixture
def read(tmp_path: Path) -> Reading:
    """Return what reads a text as a file of routes."""

    def reading(text: str, constraint: str = "") -> RouteTable:
        path = tmp_path / "routes.conf"
        path.write_text(text)
        return read_route_file(path, constraint=constraint)

    return reading


def refusal(read: Reading, text: str) -> list[str]:
    with pytest.raises(InvalidInputError) as refused:
        read(text)
    return [str(violation).partition("routes.conf")[2] for violation in refused.value.violations]


def a_route(*statements: str, name: str = "A") -> str:
    body = "\n  ".join(statements)
    return f"JOB_ROUTER_ROUTE_NAMES = {name}\nJOB_ROUTER_ROUTE_{name} @=end\n  {body}\n@end\n"


def test_routes_come_in_the_order_of_their_names_and_the_others_are_named(read: Reading) -> None:
    table = read(
        "JOB_ROUTER_SOURCE_JOB_CONSTRAINT = WantJobRouter\nJOB_ROUTER_ROUTE_NAMES = B, A Gone\n"
        + "".join(f'JOB_ROUTER_ROUTE_{name} = GridResource = "{name}"\n' for name in "ABC")
    )
    assert [route.name for route in table.routes] == ["B", "A"]
    assert table.left_out == (
        LeftOut("Gone", "JOB_ROUTER_ROUTE_NAMES lists it, and nothing defines JOB_ROUTER_ROUTE_Gone"),
        LeftOut("C", "JOB_ROUTER_ROUTE_NAMES does not list it"),
    )


def test_a_route_that_is_listed_twice_stands_where_it_is_listed_first(read: Reading) -> None:
    table = read(
        "JOB_ROUTER_ROUTE_NAMES = B A b\n" + "".join(f"JOB_ROUTER_ROUTE_{name} = REQUIREMENTS true\n" for name in "AB")
    )
    assert [route.name for route in table.routes] == ["B", "A"]
    assert table.left_out == (LeftOut("b", "JOB_ROUTER_ROUTE_NAMES lists it before, and the first time counts"),)


def test_a_route_in_todays_language_says_what_the_papers_does(read: Reading) -> None:
    table = read(
        a_route(
            'GridResource = "gt2  site2.edu/jobmanager-pbs"',
            "REQUIREMENTS WantJobRouter",
            "MaxIdleJobs = 10",
            "MaxJobs = 100",
            "FailureRateThreshold = 0.01",
            "JobFailureTest = RemoteWallClockTime < 60",
            "UNIVERSE VANILLA",
            'SET GlobusRSL "(maxwalltime=1440))(jobType=single)"',
            r'DEFAULT Pattern = "a\.b"',
            "default_queue = long",
            "COPY Environment Original_Environment",
            r"RENAME /^AuthToken.*$/ orig_\0",
            "DELETE environment",
            "EVALSET Experiment = strcat(Owner)",
        )
    )
    (route,) = table.routes
    assert (route.requirements, route.own) == ("WantJobRouter", None)
    assert route.grid_resource == "gt2 site2.edu/jobmanager-pbs"
    assert route.limits == Limits(100, 10, 0.01)
    assert (route.universe, route.failure_test) == (5, "RemoteWallClockTime < 60")
    assert route.changes == (
        'SET GlobusRSL "(maxwalltime=1440))(jobType=single)"',
        r'DEFAULT Pattern = "a\.b"',
        "default_queue = long",
        "COPY Environment Original_Environment",
        r"RENAME /^AuthToken.*$/ orig_\0",
        "DELETE environment",
        "EVALSET Experiment = strcat(Owner)",
    )


def test_macros_of_the_configuration_are_replaced_and_those_of_a_job_wait_for_it(read: Reading) -> None:
    table = read(
        "Most = 40\nLocal = of the configuration\n"
        + a_route(
            'REQUIREMENTS Owner == "$(Someone:ann)"',
            "MaxJobs = $(Most)",
            "Local = 5",
            "MaxIdleJobs = $(Local)",
            "EVALMACRO wide $(MY.RequestCpus:0) > 1",
            "if $(wide)",
            "  SET RequestCpus $(Most) + $(MY.RequestCpus)",
            "endif",
        )
    )
    (route,) = table.routes
    assert (route.requirements, route.limits.max_jobs, route.limits.max_idle_jobs) == ('Owner == "ann"', 40, 5)
    assert route.changes == (
        "Local = 5",
        "EVALMACRO wide $(MY.RequestCpus:0) > 1",
        "if $(wide)",
        "SET RequestCpus 40 + $(MY.RequestCpus)",
        "endif",
    )


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SET A 1 +", "1 + is not a ClassAd expression"),
        ("SET A", "names an attribute and its value"),
        ("SETT A 1", "is no statement of a route"),
        ("COPY A", "COPY is followed by the name of an attribute, and by a second one unless it is DELETE"),
        ("DELETE A B", "DELETE is followed by the name of an attribute, and by a second one unless it is DELETE"),
        ("endif", "endif has no if"),
        ("elif true", "elif has no if"),
        ("SET MY.A 1", "MY.A is not the name of an attribute"),
        ("COPY A.b C", "A.b is not the name of an attribute"),
        (r"RENAME /(A)/ \1-x", r"\1-x is not the name of an attribute"),
        ("SET A $CHOICE(x)", "$CHOICE() is not known here"),
        ("SET A $INT(MY.x,%d)", "$INT() is followed by a name, or by a name and a default as in $INT(name:default)"),
        ("SET A $(b:1", "the default 1 has no end"),
        ("SET A $(b:$(b:$(b:$(b:$(b:$(b:$(b:$(b:$(b:1)))))))))", "macros stand too deep inside one another"),
        ('GridResource = "batch $$(Queue)"', "GridResource cannot refer to a slot: there is none yet"),
        ("SET A $$(Memory)", "$$(Memory) is not a ClassAd expression"),
        ("MaxJobs = $(MY.Many)", "MaxJobs can refer to nothing that only the job or a condition defines"),
        ("REQUIREMENTS )", ") closes nothing"),
        ("UNIVERSE sideways up", "sideways up is not a ClassAd expression"),
    ],
)
def test_a_malformed_statement_is_refused_with_its_route_line_and_number(
    read: Reading, statement: str, why: str
) -> None:
    (said,) = refusal(read, a_route("REQUIREMENTS true", statement))
    assert said == f", line 2, JOB_ROUTER_ROUTE_A, statement 2 ({statement}): {why}"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("else", "else comes after else"),
        ("elif true", "elif comes after else"),
        ("endif it", "endif stands alone on its line"),
    ],
)
def test_branches_that_do_not_follow_one_another_are_refused(read: Reading, statement: str, why: str) -> None:
    said = refusal(read, a_route("REQUIREMENTS true", "if $(MY.x)", "else", statement, "endif"))
    assert said[0] == f", line 2, JOB_ROUTER_ROUTE_A, statement 4 ({statement}): {why}"


def test_an_else_with_a_condition_is_refused(read: Reading) -> None:
    (said,) = refusal(read, a_route("if $(MY.x)", "else if true", "endif"))
    assert said == ", line 2, JOB_ROUTER_ROUTE_A, statement 2 (else if true): else stands alone on its line"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("if", "if has no condition"),
        ("if version >= 9", "the condition version >= 9 is neither true nor false"),
        ("if defined", "the condition defined is neither true nor false"),
    ],
)
def test_a_condition_that_no_job_can_tell_is_refused(read: Reading, statement: str, why: str) -> None:
    (said,) = refusal(read, a_route(statement, "SET A 1", "endif"))
    assert said == f", line 2, JOB_ROUTER_ROUTE_A, statement 1 ({statement}): {why}"


def test_macros_of_the_configuration_are_known_to_what_is_made_for_a_job(read: Reading) -> None:
    table = read(
        "Groups = /etc/groups\nMany = 2 * 20\nMost = 41\n"
        + a_route("REQUIREMENTS true", "MaxJobs = $INT(Many)", "if defined groups", 'SET A "$(Groups)"', "endif")
        + "JOB_ROUTER_POST_ROUTE_TRANSFORM_NAMES = T\n"
        + "JOB_ROUTER_TRANSFORM_T @=end\n  if $(MY.Gone:no)\n  Most = 1\n  endif\n  SET B $(most)\n@end\n"
    )
    assert table.routes[0].limits.max_jobs == 40
    assert copy_of({}, table.routes[0], table) == {"A": "/etc/groups", "B": 41}


def test_what_asks_for_a_slot_stays_and_is_noted(read: Reading) -> None:
    (route,) = read("Memory = 5\n" + a_route("REQUIREMENTS true", 'SET A "$$(Memory)"')).routes
    assert route.changes == ('SET A "$$(Memory)"',)
    assert route.notes == ("$$(…) stays as it is: nothing here replaces it by what a slot says",)


def test_what_decides_about_a_job_does_not_depend_on_a_condition(read: Reading) -> None:
    assert refusal(read, a_route("if $(MY.x)", "MaxJobs = 1", "endif")) == [
        ", line 2, JOB_ROUTER_ROUTE_A, statement 2 (MaxJobs = 1): MaxJobs cannot depend on a condition"
    ]
    assert refusal(read, a_route("if $(MY.x)")) == [", line 2, JOB_ROUTER_ROUTE_A: an if has no endif"]


def test_every_malformed_route_and_knob_is_named(read: Reading) -> None:
    text = (
        "JOB_ROUTER_ROUTE_NAMES = A B C\nJOB_ROUTER_ROUTE_A = SET x\nJOB_ROUTER_ROUTE_B = MaxJobs = many\n"
        "JOB_ROUTER_ROUTE_C = REQUIREMENTS x\nJOB_ROUTER_MAX_JOBS = some\nJOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = T U\n"
        "JOB_ROUTER_TRANSFORM_T = DELETE\n"
    )
    assert refusal(read, text) == [
        ", line 5, JOB_ROUTER_MAX_JOBS: some is not a whole number",
        ", line 2, JOB_ROUTER_ROUTE_A, statement 1 (SET x): names an attribute and its value",
        ", line 3, JOB_ROUTER_ROUTE_B, MaxJobs: many is not a whole number",
        ", line 7, JOB_ROUTER_TRANSFORM_T, statement 1 (DELETE): "
        "DELETE is followed by the name of an attribute, and by a second one unless it is DELETE",
        ", line 6, JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES: lists U, and nothing defines JOB_ROUTER_TRANSFORM_U",
    ]


def test_transforms_around_the_routes_come_with_their_requirements(read: Reading) -> None:
    table = read(
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = First\nJOB_ROUTER_POST_ROUTE_TRANSFORM_NAMES = Last\n"
        "JOB_ROUTER_TRANSFORM_First = DELETE WantJobRouter\n"
        "JOB_ROUTER_TRANSFORM_Last @=end\n  REQUIREMENTS RequestGpus isnt undefined\n  SET x $(queue:short)\n@end\n"
        + a_route("REQUIREMENTS true", "queue = long")
    )
    assert table.before == (Transform("First", None, ("DELETE WantJobRouter",)),)
    assert table.after == (Transform("Last", "RequestGpus isnt undefined", ("SET x $(queue:short)",)),)


def test_limits_come_from_the_configuration_where_a_route_says_none(read: Reading) -> None:
    table = read(
        "JOB_ROUTER_DEFAULT_MAX_JOBS_PER_ROUTE = 200\nJOB_ROUTER_DEFAULT_MAX_IDLE_JOBS_PER_ROUTE = -1\n"
        "JOB_ROUTER_MAX_JOBS = 2 * 500\n" + a_route("REQUIREMENTS true")
    )
    assert table.routes[0].limits == Limits(200, None)
    assert table.max_jobs == 1000


def test_routes_take_turns_unless_the_configuration_says_otherwise(read: Reading) -> None:
    route = a_route("REQUIREMENTS true")
    assert read(route).round_robin
    assert not read("JOB_ROUTER_ROUND_ROBIN_SELECTION = False\n" + route).round_robin
    assert read(route).max_jobs is None


def test_entries_are_read_over_the_defaults_and_ordered_by_the_names(read: Reading) -> None:
    entries = (
        "JOB_ROUTER_DEFAULTS = [ MaxIdleJobs = 20; set_A = 1; ] [ MaxJobs = 7; ]\nJOB_ROUTER_ENTRIES @=end\n"
        '[ name = "a b"; Requirements = true; set_a = 2; ]\n# no route\n'
        '[ name = "c"; Requirements = true; MaxIdleJobs = 5; ]\n@end\n'
    )
    first, second = read(entries).routes
    assert (first.name, first.limits, first.changes) == ("a b", Limits(7, 20), ("SET a 2",))
    assert (second.name, second.limits, second.changes) == ("c", Limits(7, 5), ("SET A 1",))
    ordered = read(entries + "JOB_ROUTER_ROUTE_NAMES = c\n")
    assert [route.name for route in ordered.routes] == ["c"]
    assert ordered.left_out == (LeftOut("a b", "JOB_ROUTER_ROUTE_NAMES does not list it"),)


def test_a_route_of_today_takes_the_place_of_an_entry_of_its_name(read: Reading) -> None:
    table = read('JOB_ROUTER_ENTRIES = [ name = "a"; MaxJobs = 1 ]\n' + a_route("REQUIREMENTS true", "MaxJobs = 2"))
    assert [(route.name, route.limits.max_jobs) for route in table.routes] == [("A", 2)]
    assert table.left_out == (LeftOut("a", "JOB_ROUTER_ROUTE_A takes its place"),)


def test_a_malformed_entry_is_refused_with_its_name_and_the_macros_that_it_lacks(read: Reading) -> None:
    text = 'JOB_ROUTER_ENTRIES @=end\n[ name = "a";\n  eval_set_B = $(Pressure); ]\n@end\n'
    assert refusal(read, text) == [
        ', line 1, JOB_ROUTER_ENTRIES (nothing defines Pressure), route 1 "a", line 2, eval_set_B: there is no value'
    ]


def test_a_route_that_would_take_every_job_is_left_out_unless_jobs_are_constrained(read: Reading) -> None:
    text = a_route('GridResource = "x"')
    (left_out,) = read(text).left_out
    assert left_out.name == "A"
    assert "it would take every job" in left_out.reason
    for table in (
        read(text, constraint="WantJobRouter\n && true"),
        read("JOB_ROUTER_SOURCE_JOB_CONSTRAINT = WantJobRouter && true\n" + text, constraint="false"),
        read('[name = "A"]', constraint="WantJobRouter && true"),
    ):
        assert table.constraint == "WantJobRouter && true"
        assert [route.name for route in table.routes] == ["A"]


@pytest.mark.parametrize("text", ["JOB_ROUTER_ROUTE_NAMES =\n", '[name = "A"]'])
def test_a_malformed_constraint_is_not_the_files_fault(read: Reading, text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read(text, constraint="1 +")
    assert str(refused.value) == "constraint: 1 + is not a ClassAd expression"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("EditJobInPlace = true", "it edits jobs in place (EditJobInPlace), and makes no copy that could go anywhere"),
        ("UNIVERSE local", "its copies are of universe 12 (local), which no batch system runs"),
        ("TargetUniverse = 77", "its copies are of universe 77 (unknown here), which no batch system runs"),
    ],
)
def test_a_route_without_a_meaning_here_is_left_out_with_the_reason(read: Reading, statement: str, reason: str) -> None:
    assert read(a_route("REQUIREMENTS true", statement)).left_out == (LeftOut("A", reason),)


def test_tables_that_lie_elsewhere_are_named(read: Reading) -> None:
    table = read("JOB_ROUTER_ENTRIES_CMD = /bin/table\n" + a_route("REQUIREMENTS true"))
    assert [left_out.name for left_out in table.left_out] == ["JOB_ROUTER_ENTRIES_CMD"]


def test_a_configuration_without_routes_is_refused(read: Reading) -> None:
    assert refusal(read, "START = True\n") == [
        ": names no routes: neither JOB_ROUTER_ROUTE_NAMES nor JOB_ROUTER_ENTRIES is set"
    ]


def test_what_htcondor_cannot_read_is_refused_in_its_words(read: Reading) -> None:
    with pytest.raises(InvalidConfigurationError, match="line 2"):
        read("JOB_ROUTER_ROUTE_NAMES = A\nthis is nothing\n")
    with pytest.raises(InvalidConfigurationError, match="wants to run a command"):
        read("include command : /bin/table\n")
