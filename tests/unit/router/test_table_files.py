"""Route files with HTCondor's current and old configuration knobs."""

from __future__ import annotations

import pytest

from pilotage.condor.config import InvalidConfigurationError
from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.table import LeftOut, RouteLimits, RouteTransform
from support.route_tables import TableReader, a_route, read, refusal

__all__ = ["read"]


def test_routes_follow_route_names_and_others_are_left_out(read: TableReader) -> None:
    table = read(
        "JOB_ROUTER_SOURCE_JOB_CONSTRAINT = WantJobRouter\nJOB_ROUTER_ROUTE_NAMES = B, A Gone\n"
        + "".join(f'JOB_ROUTER_ROUTE_{name} = GridResource = "{name}"\n' for name in "ABC")
    )
    assert [route.name for route in table.routes] == ["B", "A"]
    assert table.left_out == (
        LeftOut("Gone", "JOB_ROUTER_ROUTE_NAMES lists it, and nothing defines JOB_ROUTER_ROUTE_Gone"),
        LeftOut("C", "JOB_ROUTER_ROUTE_NAMES does not list it"),
    )


def test_first_listing_of_repeated_route_counts(read: TableReader) -> None:
    table = read(
        "JOB_ROUTER_ROUTE_NAMES = B A b\n" + "".join(f"JOB_ROUTER_ROUTE_{name} = REQUIREMENTS true\n" for name in "AB")
    )
    assert [route.name for route in table.routes] == ["B", "A"]
    assert table.left_out == (LeftOut("b", "JOB_ROUTER_ROUTE_NAMES lists it before, and the first time counts"),)


def test_error_lists_all_malformed_routes_and_knobs(read: TableReader) -> None:
    text = (
        "JOB_ROUTER_ROUTE_NAMES = A B C\nJOB_ROUTER_ROUTE_A = SET x\nJOB_ROUTER_ROUTE_B = MaxJobs = many\n"
        "JOB_ROUTER_ROUTE_C = REQUIREMENTS x\nJOB_ROUTER_MAX_JOBS = some\nJOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = T U\n"
        "JOB_ROUTER_TRANSFORM_T = DELETE\n"
    )
    assert refusal(read, text) == [
        ", line 5, JOB_ROUTER_MAX_JOBS: some is not a whole number",
        ", line 2, JOB_ROUTER_ROUTE_A, statement 1 (SET x): needs an attribute and its value",
        ", line 3, JOB_ROUTER_ROUTE_B, MaxJobs: many is not a whole number",
        ", line 7, JOB_ROUTER_TRANSFORM_T, statement 1 (DELETE): "
        "DELETE needs the name of an attribute, and a second one unless it is DELETE",
        ", line 6, JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES: lists U, and nothing defines JOB_ROUTER_TRANSFORM_U",
    ]


def test_reads_pre_and_post_route_transforms(read: TableReader) -> None:
    table = read(
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = First\nJOB_ROUTER_POST_ROUTE_TRANSFORM_NAMES = Last\n"
        "JOB_ROUTER_TRANSFORM_First = DELETE WantJobRouter\n"
        "JOB_ROUTER_TRANSFORM_Last @=end\n  REQUIREMENTS RequestGpus isnt undefined\n  SET x $(queue:short)\n@end\n"
        + a_route("REQUIREMENTS true", "queue = long")
    )
    assert table.before == (RouteTransform("First", None, ("DELETE WantJobRouter",)),)
    assert table.after == (RouteTransform("Last", "RequestGpus isnt undefined", ("SET x $(queue:short)",)),)


def test_limits_default_to_configuration(read: TableReader) -> None:
    table = read(
        "JOB_ROUTER_DEFAULT_MAX_JOBS_PER_ROUTE = 200\nJOB_ROUTER_DEFAULT_MAX_IDLE_JOBS_PER_ROUTE = -1\n"
        "JOB_ROUTER_MAX_JOBS = 2 * 500\n" + a_route("REQUIREMENTS true")
    )
    assert table.routes[0].limits == RouteLimits(200, None)
    assert table.max_jobs == 1000


def test_round_robin_is_the_default(read: TableReader) -> None:
    route = a_route("REQUIREMENTS true")
    assert read(route).round_robin
    assert not read("JOB_ROUTER_ROUND_ROBIN_SELECTION = False\n" + route).round_robin
    assert read(route).max_jobs is None


def test_entries_inherit_defaults_and_follow_route_names(read: TableReader) -> None:
    entries = (
        "JOB_ROUTER_DEFAULTS = [ MaxIdleJobs = 20; set_A = 1; ] [ MaxJobs = 7; ]\nJOB_ROUTER_ENTRIES @=end\n"
        '[ name = "a b"; Requirements = true; set_a = 2; ]\n# no route\n'
        '[ name = "c"; Requirements = true; MaxIdleJobs = 5; ]\n@end\n'
    )
    first, second = read(entries).routes
    assert (first.name, first.limits, first.changes) == ("a b", RouteLimits(7, 20), ("SET a 2",))
    assert (second.name, second.limits, second.changes) == ("c", RouteLimits(7, 5), ("SET A 1",))
    ordered = read(entries + "JOB_ROUTER_ROUTE_NAMES = c\n")
    assert [route.name for route in ordered.routes] == ["c"]
    assert ordered.left_out == (LeftOut("a b", "JOB_ROUTER_ROUTE_NAMES does not list it"),)


def test_new_route_replaces_old_entry_of_same_name(read: TableReader) -> None:
    table = read('JOB_ROUTER_ENTRIES = [ name = "a"; MaxJobs = 1 ]\n' + a_route("REQUIREMENTS true", "MaxJobs = 2"))
    assert [(route.name, route.limits.max_jobs) for route in table.routes] == [("A", 2)]
    assert table.left_out == (LeftOut("a", "JOB_ROUTER_ROUTE_A takes its place"),)


def test_error_for_entry_names_undefined_macros(read: TableReader) -> None:
    for statement in ("eval_set_B = $(Pressure);", 'GridResource = "batch $(Pressure)";'):
        text = f'JOB_ROUTER_ENTRIES @=end\n[ name = "a";\n  {statement} ]\n@end\n'
        assert refusal(read, text) == [", line 1, JOB_ROUTER_ENTRIES: nothing defines Pressure"]


def test_constraint_of_undefined_macros_is_refused(read: TableReader) -> None:
    text = "JOB_ROUTER_SOURCE_JOB_CONSTRAINT = $(Wanted)\n" + a_route("REQUIREMENTS true")
    assert refusal(read, text) == [", line 1, JOB_ROUTER_SOURCE_JOB_CONSTRAINT: nothing defines Wanted"]


def test_unconstrained_route_is_left_out(read: TableReader) -> None:
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
def test_error_for_constraint_does_not_name_file(read: TableReader, text: str) -> None:
    with pytest.raises(InvalidInputError) as rejected:
        read(text, constraint="1 +")
    assert str(rejected.value) == "constraint: 1 + is not a ClassAd expression"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("EditJobInPlace = true", "it edits jobs in place (EditJobInPlace), and so makes no job for a target"),
        ("UNIVERSE local", "its jobs are of universe 12 (local), which no batch system runs"),
        ("TargetUniverse = 77", "its jobs are of universe 77 (unknown here), which no batch system runs"),
    ],
)
def test_unsupported_route_is_left_out_with_reason(read: TableReader, statement: str, reason: str) -> None:
    assert read(a_route("REQUIREMENTS true", statement)).left_out == (LeftOut("A", reason),)


def test_external_tables_are_listed_as_left_out(read: TableReader) -> None:
    table = read("JOB_ROUTER_ENTRIES_CMD = /bin/table\n" + a_route("REQUIREMENTS true"))
    assert [left_out.name for left_out in table.left_out] == ["JOB_ROUTER_ENTRIES_CMD"]


def test_rejects_configuration_without_routes(read: TableReader) -> None:
    assert refusal(read, "START = True\n") == [
        ": has no routes: neither JOB_ROUTER_ROUTE_NAMES nor JOB_ROUTER_ENTRIES is set"
    ]


def test_rejects_invalid_configuration_with_htcondors_message(read: TableReader) -> None:
    with pytest.raises(InvalidConfigurationError, match="line 2"):
        read("JOB_ROUTER_ROUTE_NAMES = A\nthis is nothing\n")
    with pytest.raises(InvalidConfigurationError, match="wants to run a command"):
        read("include command : /bin/table\n")
