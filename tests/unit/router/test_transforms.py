"""The changes that routes and transforms make to a job's attributes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.classad_tables import read_ads, routes_of
from pilotage_agents.router.core.table import InvalidRoutesError, Route, RouteLimits, RouteTable, RouteTransform
from pilotage_agents.router.core.transforms import read_route, read_transform

JOB: dict[str, AdValue] = {
    "Owner": "ann",
    "RequestCpus": 4,
    "Wants": True,
    "Nothing": Expression("undefined"),
    "Limit": Expression("RequestCpus * 2"),
    "Pattern": Expression(r'regexp("\\d+", Owner)'),
}


def a_route(*statements: str, name: str = "A") -> Route:
    return read_route(name, "\n".join(statements), {}, RouteLimits())


def a_transform(*statements: str) -> RouteTransform:
    return read_transform("T", "\n".join(statements), {})


def changed(
    *statements: str, job: Mapping[str, AdValue] = JOB, macros: Mapping[str, str] | None = None
) -> dict[str, AdValue]:
    """Return the attributes of the routed ad that differ from the job; `macros` are the configuration's."""
    route = a_route(*statements)
    copy = routed_ad(job, route, RouteTable((route,), macros=macros or {}))
    return {name: value for name, value in copy.items() if name not in job or job[name] != value}


def test_set_keeps_expression_and_evalset_evaluates_it() -> None:
    assert changed("SET A RequestCpus + 1", "EVALSET B RequestCpus + 1", 'EVALSET C strcat("x.", Owner)') == {
        "A": Expression("RequestCpus + 1"),
        "B": 5,
        "C": "x.ann",
    }
    assert changed('EVALSET A split("a b")', "EVALSET B Missing", "SET requestcpus 8") == {
        "A": ("a", "b"),
        "B": Expression("undefined"),
        "requestcpus": 8,
    }


def test_default_applies_to_missing_and_undefined_attributes() -> None:
    assert changed("DEFAULT RequestCpus 1", "DEFAULT Nothing 2", "DEFAULT A 3") == {"Nothing": 2, "A": 3}


def test_copy_rename_and_delete_ignore_case() -> None:
    job: dict[str, AdValue] = {"OnExitHold": True, "OnExitHoldReason": "x", "Other": 1}
    route = a_route(r"COPY /^onexit(.*)$/ orig_\1_\0\7", "RENAME OTHER Same", "COPY Gone Back", "DELETE onexithold")
    assert routed_ad(job, route, RouteTable((route,))) == {
        "OnExitHoldReason": "x",
        "orig_Hold_OnExitHold": True,
        "orig_HoldReason_OnExitHoldReason": "x",
        "Same": 1,
    }
    route = a_route("DELETE /exit/", "RENAME Other OTHER")
    assert routed_ad(job, route, RouteTable((route,))) == {"OTHER": 1}


def test_macros_see_earlier_statements_and_routed_ad() -> None:
    assert changed(
        'SET A "$(MY.Owner)-$(size:none)-$(MY.Gone:$(size:less))-$(MY.Gone)"',
        "size = 3",
        "EVALMACRO twice $(size) * 2",
        'EVALMACRO who strcat("by ", Owner)',
        'SET B "$(size) $(twice) $(who) $F(MY.Owner) $$(Memory)"',
        "SET C $(MY.Limit) + $INT(MY.Limit) + $REAL(MY.RequestCpus) + $INT(size)",
        "SET D $(MY.Pattern)",
    ) == {
        "A": "ann-none-less-",
        "B": "3 6 by ann ann $$(Memory)",
        "C": Expression("RequestCpus * 2 + 8 + 4.0 + 3"),
        "D": JOB["Pattern"],
    }


def test_macros_in_job_values_are_not_expanded() -> None:
    job: dict[str, AdValue] = {"Name": "$(MY.Owner) $(secret) $INT(x) $$(y)", "Owner": "ann"}
    changes = changed("secret = value", 'SET A "$(MY.Name)"', "copied = $(MY.Name)", 'SET B "$(copied)"', job=job)
    assert changes == {"A": job["Name"], "B": job["Name"]}


def test_slot_macros_are_not_expanded() -> None:
    assert changed("memory = 5", 'SET A "$$(Memory) $$([MY.Memory]) $(Memory)"', macros={"memory": "7"}) == {
        "A": "$$(Memory) $$([MY.Memory]) 5"
    }


def test_statement_overrides_configuration_macro() -> None:
    program = ("if defined most", "SET A $INT(Most) + 1", "endif", "Most = 3", "SET B $(most:9)", "SET C $(Gone:(4))")
    changes = changed(*program, macros={"most": "20 * 2"})
    assert changes == {"A": 41, "B": 3, "C": 4}
    assert changed(*program) == {"B": 3, "C": 4}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("defined MY.Owner", True),
        ("defined MY.Nothing", False),
        ("defined MY.Gone", False),
        ("defined MY.Limit", True),
        ("defined size", True),
        ("defined empty", False),
        ("! defined gone", True),
        ("$(MY.Wants)", True),
        ("$(MY.Gone:False)", False),
        ("$(MY.Gone)", False),
        ("$(MY.RequestCpus)", True),
        ("0", False),
        ("!yes", False),
    ],
)
def test_condition_selects_branch(condition: str, holds: bool) -> None:
    program = ("size = 3", "empty =", f"if {condition}", "SET A 1", "else", "SET A 2", "endif", "SET B 1")
    assert changed(*program) == {"A": 1 if holds else 2, "B": 1}


def test_only_first_true_branch_is_evaluated() -> None:
    assert changed(
        "if false",
        "if $(MY.Owner) is nonsense in a branch that is not taken",
        "SET A 1",
        "endif",
        "elif defined MY.Owner",
        "if true",
        "SET A 2",
        "endif",
        "elif more $(MY.Owner) nonsense",
        "SET A 3",
        "else",
        "SET A 4",
        "endif",
    ) == {"A": 2}


def test_pre_route_transforms_do_not_change_the_job() -> None:
    routes = (a_route("SET Site 1", name="A"), a_route("SET Site 2", name="B"))
    table = RouteTable(routes, before=(a_transform("DELETE RouteMe", "SET RoutedJob true"),))
    job: dict[str, AdValue] = {"RouteMe": True}
    for site, route in enumerate(routes, start=1):
        assert routed_ad(job, route, table) == {"RoutedJob": True, "Site": site}
    assert job == {"RouteMe": True}


def test_transforms_share_macros_and_respect_requirements() -> None:
    route = a_route("default_queue = long", "SET B $(before)")
    table = RouteTable(
        (route,),
        before=(a_transform("before = 1"), a_transform("REQUIREMENTS RequestCpus > 4", "SET Wide true")),
        after=(a_transform("REQUIREMENTS B == 1", 'SET Queue "$(default_queue:short)"'), a_transform("SET B 2")),
    )
    assert routed_ad({"RequestCpus": 4}, route, table) == {"RequestCpus": 4, "B": 2, "Queue": "long"}


def test_changes_of_classad_route_use_classad_syntax() -> None:
    (route,), _ = routes_of(
        read_ads(
            r'[name = "a"; set_P = "a\\b $(MY.Owner)"; eval_set_N = RequestCpus + 1; delete_Wants = true; '
            'copy_Owner = "First"; set_Owner = "bob"]'
        ),
        RouteLimits(),
    )
    copy = routed_ad({"Owner": "ann", "RequestCpus": 4, "Wants": True}, route, RouteTable((route,)))
    assert copy == {"Owner": "bob", "RequestCpus": 4, "First": "ann", "P": r"a\b $(MY.Owner)", "N": 5}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SET A $(MY.Gone)", "it has no value"),
        ("SET A $(MY.Owner) +", "ann + is not a ClassAd expression"),
        ("if $(MY.Owner)", "the condition ann is neither true nor false"),
        ("COPY Owner $(MY.Gone)", "it has 1 of 2 names"),
        ("SET A $INT(MY.Owner)", "ann is not a number"),
        (r"COPY /Owner(s)?/ \1", "no attribute is named"),
    ],
)
def test_error_names_route_and_statement(statement: str, why: str) -> None:
    program = (statement, "endif") if statement.startswith("if") else (statement,)
    with pytest.raises(InvalidRoutesError) as rejected:
        changed(*program)
    assert str(rejected.value) == f"A, {statement}: {why}"
