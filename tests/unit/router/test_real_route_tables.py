"""Every real route table reads, or is refused with the place and the reason, and no route of it is dropped silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage.errors import InvalidInputError
from pilotage.routes import JobScopes
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.route_selection import chosen_route, route_decisions
from pilotage_agents.router.core.table import RouteTable
from pilotage_agents.router.table_file import read_route_file
from support.route_tables import ROUTERS, constrained

REFUSED = {
    "htcondor-ce__01-ce-router-defaults.conf": "wants to run a command: /usr/share/condor-ce/condor_ce_router_defaults",
    "htcondor-ce__01-ce-router-defaults.conf.in.conf": "wants to run a command: /usr/share/condor-ce/",
    "htcondor-ce__batch-system-integration.md_L657.conf": "Found end-of-file while scanning for '@jre ['",
    "htcondor-ce__batch-system-integration.md_L703.conf": 'route 1 "Analysis Queue", line 7, eval_set_IdleMP8Pressure',
    "htcondor-ce__non-htcondor-routes.md_L85.conf": "Found end-of-file while scanning for '@jre ['",
    "htcondor__job-router.rst_L226.conf": "line 33, JOB_ROUTER_TRANSFORM_Defaults, statement 1",  # ) without (
    "non-OSG-CE__01-ce-router.conf": "has no routes",
}
LEFT_OUT = {
    "htcondor-ce__writing-job-routes.md_L357.conf": ["My_HTCONDOR", "Condor_Pool"],
    "htcondor-ce__writing-job-routes.md_L849.conf": ["Condor_Pool", "Condor_Poole"],
    "htcondor-ce__writing-job-routes.md_L879.conf": ["Condor_Pool", "Condor_Poole"],
}
"""Routes of one name that their list calls by another."""

_NAMED = re.compile(r'^\s*JOB_ROUTER_ROUTE_(?!NAMES)(\w+)|^[^#\n]*\bname\s*=\s*"([^"]*)"', re.IGNORECASE | re.MULTILINE)


def names_in(text: str) -> set[str]:
    """Return the names of the routes that a text defines."""
    return {name for pair in _NAMED.findall(text) for name in pair if name}


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("path", [path for path in ROUTERS if path.name not in REFUSED], ids=lambda path: path.name)
def test_a_table_reads_and_none_of_its_routes_is_dropped_silently(path: Path) -> None:
    table = constrained(path)
    routes, left_out = ([each.name for each in found] for found in (table.routes, table.left_out))
    assert left_out == LEFT_OUT.get(path.name, [])
    assert {*routes, *left_out} >= names_in(path.read_text())


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_a_table_that_cannot_be_read_is_refused_with_its_place(shared_data: Path, name: str, words: str) -> None:
    path = shared_data / "data" / "job_router" / name
    with pytest.raises(InvalidInputError) as refused:
        constrained(path)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_the_real_tables_are_all_there(shared_data: Path) -> None:
    names = {path.name for path in (shared_data / "data" / "job_router").iterdir()}
    assert {path.name for path in ROUTERS} == names
    assert names >= REFUSED.keys() | LEFT_OUT.keys()


def test_the_papers_table_says_the_same_in_both_forms(shared_data: Path) -> None:
    paper, today = (read_route_file(shared_data / "policies" / name) for name in ("router_table.ads", "router.conf"))
    assert [route.name for route in paper.routes] == ["Site 1", "Site 2", "Site 3"]
    assert [route.name for route in today.routes] == ["Site1", "Site2", "Site3"]
    assert not paper.left_out + today.left_out
    for one, other in zip(paper.routes, today.routes, strict=True):
        assert (one.grid_resource, one.limits, one.changes) == (other.grid_resource, other.limits, other.changes)
    for table in (paper, today):
        judged = route_decisions(table, JobScopes.of({"WantJobRouter": True}), {})
        taken = [chosen_route(judged, round_robin=table.round_robin, turn=turn) for turn in range(3)]
        assert taken == list(table.routes)
        assert chosen_route(route_decisions(table, JobScopes.of({}), {}), round_robin=True, turn=0) is None


@pytest.mark.parametrize(("today", "before"), [(715, 726), (747, 758), (777, 788), (808, 819), (916, 927)])
def test_a_documented_route_makes_the_same_copy_in_both_forms(shared_data: Path, today: int, before: int) -> None:
    job: dict[str, AdValue] = {"Environment": "A=1", "Owner": "ann"}
    copies = []
    for line in (today, before):
        table = constrained(shared_data / "data" / "job_router" / f"htcondor-ce__writing-job-routes.md_L{line}.conf")
        (route,) = table.routes
        copies.append(routed_ad(job, route, table))
    assert copies[0] == copies[1] != job


@pytest.fixture
def element(shared_data: Path, tmp_path: Path) -> RouteTable:
    """Return the table of a computing element: its transforms around one route."""
    text = (shared_data / "data" / "job_router" / "htcondor-ce__01-ce-router-defaults.conf").read_text()
    routes = (shared_data / "data" / "job_router" / "htcondor-ce__non-htcondor-routes.md_L15.conf").read_text()
    path = tmp_path / "ce.conf"
    path.write_text(re.sub("^LOCAL_CONFIG_FILE.*$", "", text, flags=re.MULTILINE) + routes)
    return read_route_file(path)


def test_the_transforms_of_a_computing_element_read_whole(element: RouteTable) -> None:
    table = element
    assert table.constraint == "target.JobUniverse =?= 5 || target.JobUniverse =?= 1"
    assert [transform.name for transform in table.before] == ["Base", "Cleanup", "OrigRequests"]
    assert len(table.after) == 7
    assert table.after[1].requirements == "RequestGpus isnt undefined"
    assert "EVALSET BatchRuntime 60*4320" in table.after[4].changes
    (route,) = table.routes
    assert (route.limits.max_jobs, route.limits.max_idle_jobs) == (10_000, 2000)
    assert route.changes == ("default_queue = osg_queue",)


def test_a_computing_elements_transforms_make_the_copy_that_its_documentation_tells_of(element: RouteTable) -> None:
    (route,) = element.routes
    plain = routed_ad({"JobUniverse": 5}, route, element)
    assert plain["RoutedJob"] is True
    assert (plain["RequestCpus"], plain["RequestMemory"], plain["BatchRuntime"]) == (1, 2000, 4320 * 60)
    assert plain["remote_queue"] == "osg_queue"
    asking: dict[str, AdValue] = {
        "xcount": 4,
        "RequestCpus": 2,
        "maxMemory": 3000,
        "maxWallTime": 90,
        "queue": "analy",
        "AuthTokenSubject": "s",
        "WantWholeNode": True,
        "TotalSubmitProcs": 1,
    }
    copy = routed_ad(asking, route, element)
    assert (copy["OriginalCpus"], copy["remote_NodeNumber"], copy["OriginalMemory"]) == (4, 4, 3000)
    assert (copy["BatchRuntime"], copy["remote_queue"], copy["orig_AuthTokenSubject"]) == (5400, "analy", "s")
    assert copy["RequestCpus"] == Expression("TARGET.TotalCpus ?: JobCpus")
    assert copy["JobIsRunning"] == Expression("(JobStatus =!= 1) && (JobStatus =!= 5) && GlideinCpusIsGood")
    assert not {"AuthTokenSubject", "TotalSubmitProcs"} & copy.keys()
