"""Route tables as lists of ClassAds."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.classad_tables import read_ads, routes_of
from pilotage_agents.router.core.table import InvalidRoutesError, LeftOut, Route, RouteLimits

PAPER = """
[ name = "Site 1";
  GridResource = "gt2 site1.edu/jobmanager-condor";
  Requirements = other.WantJobRouter;
  MaxIdleJobs = 10;
]
[ name = "Site 2";
  GridResource = "gt2 site2.edu/jobmanager-pbs";
  Requirements = other.WantJobRouter;
  MaxIdleJobs = 10;
  MaxJobs = 100;
  set_GlobusRSL = "(maxwalltime=1440))(jobType=single)";
]
[ name = "Site 3";
  GridResource = "condor submit.site3.edu condor.site3.edu";
  Requirements = other.WantJobRouter;
  MaxIdleJobs = 10;
  set_remote_jobuniverse = 5;
]
"""


def routes(text: str, defaults: RouteLimits | None = None) -> list[Route]:
    found, left_out = routes_of(read_ads(text), defaults or RouteLimits())
    assert left_out == []
    return found


def errors_of(text: str) -> list[str]:
    with pytest.raises(InvalidInputError) as rejected:
        routes_of(read_ads(text), RouteLimits())
    return [str(violation) for violation in rejected.value.violations]


def test_reads_table_of_job_router_paper() -> None:
    found = routes(PAPER, RouteLimits(max_jobs=7))
    assert [(route.name, route.grid_resource) for route in found] == [
        ("Site 1", "gt2 site1.edu/jobmanager-condor"),
        ("Site 2", "gt2 site2.edu/jobmanager-pbs"),
        ("Site 3", "condor submit.site3.edu condor.site3.edu"),
    ]
    assert {route.requirements for route in found} == {"other.WantJobRouter"}
    assert [route.limits for route in found] == [RouteLimits(7, 10), RouteLimits(100, 10), RouteLimits(7, 10)]
    assert [route.changes for route in found] == [
        (),
        ('SET GlobusRSL "(maxwalltime=1440))(jobType=single)"',),
        ("SET remote_jobuniverse 5",),
    ]


def test_changes_follow_htcondors_order() -> None:
    (route,) = routes('[name = "a"; eval_set_D = X + 1; set_C = "c"; delete_B = true; copy_A = "Z"]')
    assert route.changes == ("COPY A Z", "DELETE B", 'SET C "c"', "EVALSET D X + 1")


def test_route_keeps_its_own_attributes() -> None:
    (route,) = routes('[name = "a"; queue = "long"; Requirements = queue == TARGET.queue]')
    assert route.own_attributes is not None
    assert route.own_attributes["queue"] == "long"


def test_grid_resource_is_default_name() -> None:
    assert routes('[GridResource = "batch  slurm"]')[0].name == "batch slurm"
    assert errors_of("[MaxJobs = 1]") == ["route 1.name: the route has neither a name nor a GridResource"]


@pytest.mark.parametrize(
    ("name", "why"), [("5", "is not a text"), (r'"a\n\t"', "has characters that cannot be displayed")]
)
def test_rejects_unprintable_names(name: str, why: str) -> None:
    assert errors_of(f'[GridResource = "x"; name = {name}]')[0].endswith(f"name: {why}")


def test_comments_do_not_change_line_numbers() -> None:
    text = '# a table\n[\n  name = "# a";\n  # set_A = 1;\n  /* or */ MaxJobs = 5; // five\n  MaxIdleJobs = "x y;\n]'
    (error,) = errors_of(text)
    assert error == 'route 1 "# a", begun in line 2, line 6, column 17: a text is not closed by a quote'
    assert routes(text.replace('"x y;', "-1;"))[0].limits == RouteLimits(5, None)


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("MaxJobs = many", "MaxJobs: many is not a whole number"),
        ("MaxIdleJobs = true", "MaxIdleJobs: true is not a whole number"),
        ("FailureRateThreshold = 0", "FailureRateThreshold: 0 is not a number of failures a second, above 0"),
        ("GridResource = 5", "GridResource: 5 is not a text"),
        ("GridResource = strcat(Owner)", "GridResource: strcat(Owner) is not a text"),
        ("copy_A = 1", "copy_A: must be the name of an attribute, as a text"),
        ('copy_A = "9 x y"', "copy_A: 9 x y is not the name of an attribute"),
        ('copy_A = ""', "copy_A: no attribute is named"),
        ("delete_ = 1", "delete_: no attribute is named"),
        ("eval_set_9 = 1", "eval_set_9: 9 is not the name of an attribute"),
        ("'set_A B' = 1", "set_A B: A B is not the name of an attribute"),
        ("Requirements = random() > 0", "Requirements: random functions are not allowed here"),
    ],
)
def test_error_names_route_of_invalid_setting(attribute: str, why: str) -> None:
    (error,) = errors_of(f'[name = "good"]\n[name = "bad"; {attribute}]')
    assert error.startswith(f'route 2 "bad".{why}')


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("MaxJobs = ", "MaxJobs: there is no value"),
        ("MaxJobs 5", "MaxJobs: is not of the form Name = value: MaxJobs 5; ]"),
        ("5 = 3", "5: is not of the form Name = value: 5 = 3; ]"),
        ("MaxJobs", "MaxJobs: is not of the form Name = value: MaxJobs; ]"),
        ("Requirements = a &&", "Requirements: a && is not a ClassAd expression"),
        ("Set_X = 2; set_x = 1", "set_x: is set twice"),
    ],
)
def test_error_names_route_and_place_of_malformed_attribute(attribute: str, why: str) -> None:
    (error,) = errors_of(f'[name = "good"]\n[ name = "bad";\n  {attribute}; ]')
    column = 3 + attribute.rfind("set_x" if "set_x" in attribute else attribute)
    assert error == f'route 2 "bad", line 3, column {column}, {why}'


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("Requirements = (a; ]", ": a semicolon inside a value"),
        ("set_x = 1;", ": [ is not closed"),
        ('set_x = "]', ", line 3, column 25: a text is not closed by a quote"),
        ('\n5 [ name = "next"; ]', ', line 4, column 1: [ is not closed before 5 [ name = "next"; ]'),
    ],
)
def test_error_names_unclosed_route_and_place(rest: str, why: str) -> None:
    assert errors_of(f'[name = "good"]\n\n[ name = "bad"; {rest}') == [f'route 2 "bad", begun in line 3{why}']


def test_error_names_bracket_that_closes_another() -> None:
    (error,) = errors_of('[name = "good"]\n[ name = "bad";\n}\n[name = "next"]')
    assert error == 'route 2 "bad", line 3, column 1: [ of line 2 is closed by }'


def test_table_with_broken_bracket_and_caption_is_rejected_with_each_place() -> None:
    """The table of the paper as its scan has it, where the bracket after Site 2 is another character."""
    scanned = PAPER.replace('single)";\n]', 'single)";\n\u0666')
    where = 'route 2 "Site 2", begun in line 7, line 13, column 1'
    assert errors_of(scanned) == [f"{where}: [ is not closed before \u0666"]
    caption = scanned.replace(";\n]", ";\n" + " " * 9 + "Table 1. The routing table is a list of ClassAds\n]", 1)
    assert errors_of(caption) == [
        'route 1 "Site 1", line 6, column 10, Table: is not of the form Name = value: '
        "Table 1. The routing table is a list of ...",
        'route 2 "Site 2", begun in line 8, line 14, column 1: [ is not closed before \u0666',
    ]
    assert errors_of(caption.replace("]\n", "]\n" + " " * 9 + "and job transformation rules.\n", 1)) == [
        *errors_of(caption)[:1],
        "line 8, column 10: a route begins with [, not with and job transformation rules.",
        'route 2 "Site 2", begun in line 9, line 15, column 1: [ is not closed before \u0666',
    ]


def test_error_lists_all_malformed_routes() -> None:
    assert len(errors_of('[name = "a"; MaxJobs = x y]\n[name = "b"]\n[name = "c"; MaxJobs = "]"; set_A = ]')) == 2


def test_rejects_text_that_is_no_list_of_ads() -> None:
    assert errors_of('[name = "a"] name = "b"') == ['line 1, column 14: a route begins with [, not with name = "b"']


def test_later_route_replaces_earlier_one_unless_disabled() -> None:
    twice = '[name = "a"; MaxJobs = 1] [name = "A"; MaxJobs = 2{}]'
    found, left_out = routes_of(read_ads(twice.format("")), RouteLimits())
    assert [(route.name, route.limits.max_jobs) for route in found] == [("A", 2)]
    assert left_out == [LeftOut("A", "a later route of the same name takes its place")]
    found, left_out = routes_of(read_ads(twice.format("; OverrideRoutingEntry = false")), RouteLimits())
    assert [(route.name, route.limits.max_jobs) for route in found] == [("a", 1)]
    assert left_out == [LeftOut("A", "an earlier route of the same name stays (OverrideRoutingEntry)")]


def test_constant_grid_resource_of_routed_ad_wins() -> None:
    text = '[name = "a"; GridResource = "condor x y"; eval_set_GridResource = {}]'
    assert routes(text.format('strcat("condor ", "host")'))[0].grid_resource == "condor host"
    assert routes(text.format("strcat(Owner)"))[0].grid_resource == "condor x y"


def test_notes_credentials_that_are_not_sent() -> None:
    (route,) = routes('[name = "a"; SendIDTokens = "all"]')
    assert route.notes == ("SendIDTokens is not honoured",)


def test_shared_proxy_is_used_only_if_enabled() -> None:
    proxy = 'SharedX509UserProxy = "/etc/router/proxy"'
    (route,) = routes(f'[name = "a"; UseSharedX509UserProxy = true; {proxy}]')
    assert (route.shared_proxy, route.notes) == ("/etc/router/proxy", ())
    assert [route.shared_proxy for route in routes(f'[name = "a"; {proxy}]')] == [""]


@pytest.mark.parametrize("proxy", ["", 'SharedX509UserProxy = "proxy"', "SharedX509UserProxy = other.Proxy"])
def test_rejects_shared_proxy_without_absolute_path(proxy: str) -> None:
    with pytest.raises(InvalidRoutesError, match="SharedX509UserProxy"):
        routes(f'[name = "a"; UseSharedX509UserProxy = true; {proxy}]')
