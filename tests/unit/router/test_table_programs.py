"""Routes in HTCondor's transform language: statements, macros, conditions, and positions of errors."""

from __future__ import annotations

import pytest

from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.table import RouteLimits
from support.route_tables import TableReader, a_route, read, refusal

__all__ = ["read"]


def test_reads_all_statements_of_transform_language(read: TableReader) -> None:
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
    assert (route.requirements, route.own_attributes) == ("WantJobRouter", None)
    assert route.grid_resource == "gt2 site2.edu/jobmanager-pbs"
    assert route.limits == RouteLimits(100, 10, 0.01)
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


def test_expands_configuration_macros_and_keeps_job_macros(read: TableReader) -> None:
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
        ("SET A", "needs an attribute and its value"),
        ("SETT A 1", "is not a statement of a route"),
        ("COPY A", "COPY needs the name of an attribute, and a second one unless it is DELETE"),
        ("DELETE A B", "DELETE needs the name of an attribute, and a second one unless it is DELETE"),
        ("endif", "endif has no if"),
        ("elif true", "elif has no if"),
        ("SET MY.A 1", "MY.A is not the name of an attribute"),
        ("COPY A.b C", "A.b is not the name of an attribute"),
        (r"RENAME /(A)/ \1-x", r"\1-x is not the name of an attribute"),
        ("SET A $CHOICE(x)", "$CHOICE() is not a known function"),
        ("SET A $INT(MY.x,%d)", "$INT() needs a name, or a name and a default as in $INT(name:default)"),
        ("SET A $(b:1", "the default 1 is not closed"),
        ("SET A $(b:$(b:$(b:$(b:$(b:$(b:$(b:$(b:$(b:1)))))))))", "macros are nested too deep"),
        ('GridResource = "batch $$(Queue)"', "GridResource cannot refer to a slot: the job has none yet"),
        ("SET A $$(Memory)", "$$(Memory) is not a ClassAd expression"),
        (
            'GridResource = "batch $(NO_SUCH)"',
            "GridResource cannot refer to $(NO_SUCH): at most the job or a condition defines it",
        ),
        ("MaxJobs = $(MY.Many)", "MaxJobs cannot refer to $(MY.Many): at most the job or a condition defines it"),
        ("REQUIREMENTS )", ") closes nothing"),
        ("UNIVERSE sideways up", "sideways up is not a ClassAd expression"),
    ],
)
def test_error_names_route_line_and_number_of_statement(read: TableReader, statement: str, why: str) -> None:
    (error,) = refusal(read, a_route("REQUIREMENTS true", statement))
    assert error == f", line 2, JOB_ROUTER_ROUTE_A, statement 2 ({statement}): {why}"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("else", "else comes after else"),
        ("elif true", "elif comes after else"),
        ("endif it", "endif takes no condition"),
    ],
)
def test_rejects_misplaced_branches(read: TableReader, statement: str, why: str) -> None:
    errors = refusal(read, a_route("REQUIREMENTS true", "if $(MY.x)", "else", statement, "endif"))
    assert errors[0] == f", line 2, JOB_ROUTER_ROUTE_A, statement 4 ({statement}): {why}"


def test_rejects_else_with_condition(read: TableReader) -> None:
    (error,) = refusal(read, a_route("if $(MY.x)", "else if true", "endif"))
    assert error == ", line 2, JOB_ROUTER_ROUTE_A, statement 2 (else if true): else takes no condition"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("if", "if has no condition"),
        ("if version >= 9", "the condition version >= 9 is neither true nor false"),
        ("if defined", "the condition defined is neither true nor false"),
    ],
)
def test_rejects_condition_that_is_never_boolean(read: TableReader, statement: str, why: str) -> None:
    (error,) = refusal(read, a_route(statement, "SET A 1", "endif"))
    assert error == f", line 2, JOB_ROUTER_ROUTE_A, statement 1 ({statement}): {why}"


def test_configuration_macros_apply_to_routed_ad(read: TableReader) -> None:
    table = read(
        "Groups = /etc/groups\nMany = 2 * 20\nMost = 41\n"
        + a_route("REQUIREMENTS true", "MaxJobs = $INT(Many)", "if defined groups", 'SET A "$(Groups)"', "endif")
        + "JOB_ROUTER_POST_ROUTE_TRANSFORM_NAMES = T\n"
        + "JOB_ROUTER_TRANSFORM_T @=end\n  if $(MY.Gone:no)\n  Most = 1\n  endif\n  SET B $(most)\n@end\n"
    )
    assert table.routes[0].limits.max_jobs == 40
    assert routed_ad({}, table.routes[0], table) == {"A": "/etc/groups", "B": 41}


def test_keeps_slot_macro_with_note(read: TableReader) -> None:
    (route,) = read("Memory = 5\n" + a_route("REQUIREMENTS true", 'SET A "$$(Memory)"')).routes
    assert route.changes == ('SET A "$$(Memory)"',)
    assert route.notes == ("$$(…) stays as it is: there is no slot that could replace it",)


def test_rejects_selection_settings_in_conditions(read: TableReader) -> None:
    assert refusal(read, a_route("if $(MY.x)", "MaxJobs = 1", "endif")) == [
        ", line 2, JOB_ROUTER_ROUTE_A, statement 2 (MaxJobs = 1): MaxJobs cannot depend on a condition"
    ]
    assert refusal(read, a_route("if $(MY.x)")) == [", line 2, JOB_ROUTER_ROUTE_A: an if has no endif"]
