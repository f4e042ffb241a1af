"""Real route tables: each is read, or rejected with position and reason, and drops no route silently."""

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

REJECTED = {
    "htcondor-ce__01-ce-router-defaults.conf": "wants to run a command: /usr/share/condor-ce/condor_ce_router_defaults",
    "htcondor-ce__01-ce-router-defaults.conf.in.conf": "wants to run a command: /usr/share/condor-ce/",
    "htcondor-ce__batch-system-integration.md_L657.conf": "Found end-of-file while scanning for '@jre ['",
    "htcondor-ce__batch-system-integration.md_L703.conf": "JOB_ROUTER_ENTRIES: nothing defines IdleMP8Pressure",
    "htcondor-ce__non-htcondor-routes.md_L85.conf": "Found end-of-file while scanning for '@jre ['",
    "htcondor__job-router.rst_L226.conf": "line 33, JOB_ROUTER_TRANSFORM_Defaults, statement 1",  # ) without (
    "non-OSG-CE__01-ce-router.conf": "has no routes",
}
LEFT_OUT = {
    "htcondor-ce__writing-job-routes.md_L357.conf": ["My_HTCONDOR", "Condor_Pool"],
    "htcondor-ce__writing-job-routes.md_L849.conf": ["Condor_Pool", "Condor_Poole"],
    "htcondor-ce__writing-job-routes.md_L879.conf": ["Condor_Pool", "Condor_Poole"],
}
"""Routes whose name differs from the one in `JOB_ROUTER_ROUTE_NAMES`."""

LINES_OF_CAPTION = ((2, "Table"), (4, "list"), (6, "ClassAd"), (8, "ClassAds"))
"""Where the text of the paper has words of the table's caption inside the first route."""

_NAMED = re.compile(r'^\s*JOB_ROUTER_ROUTE_(?!NAMES)(\w+)|^[^#\n]*\bname\s*=\s*"([^"]*)"', re.IGNORECASE | re.MULTILINE)


def names_in(text: str) -> set[str]:
    """Return the names of the routes that a text defines."""
    return {name for pair in _NAMED.findall(text) for name in pair if name}


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("path", [path for path in ROUTERS if path.name not in REJECTED], ids=lambda path: path.name)
def test_reads_table_and_drops_no_route_silently(path: Path) -> None:
    table = constrained(path)
    routes, left_out = ([route.name for route in found] for found in (table.routes, table.left_out))
    assert left_out == LEFT_OUT.get(path.name, [])
    assert {*routes, *left_out} >= names_in(path.read_text())


@pytest.mark.parametrize(("name", "message"), REJECTED.items())
def test_rejects_unreadable_table_with_position(shared_data: Path, name: str, message: str) -> None:
    path = shared_data / "data" / "job_router" / name
    with pytest.raises(InvalidInputError) as rejected:
        constrained(path)
    assert str(path) in str(rejected.value)
    assert message in str(rejected.value)


def test_all_real_tables_are_tested(shared_data: Path) -> None:
    names = {path.name for path in (shared_data / "data" / "job_router").iterdir()}
    assert {path.name for path in ROUTERS} == names
    assert names >= REJECTED.keys() | LEFT_OUT.keys()


def test_table_of_paper_as_scanned_is_rejected_with_each_place(shared_data: Path, tmp_path: Path) -> None:
    text = (shared_data / "seeds" / "condor-job-router-chep09.txt").read_text()
    table = tmp_path / "table.ads"
    table.write_text(text[text.index('[ name = "Site 1"') :].partition("```")[0])
    with pytest.raises(InvalidInputError) as rejected:
        read_route_file(table)
    found = [str(violation).removeprefix(f"{table}, ") for violation in rejected.value.violations]
    assert found[0].endswith("Name = value: Table 1. The routing table is a")
    assert [fault.partition(": ")[0] for fault in found] == [
        *(f'route 1 "Site 1", line {line}, column 58, {word}' for line, word in LINES_OF_CAPTION),
        "line 10, column 58",
        'route 2 "Site 2", begun in line 11, line 17, column 1',
    ]
    without_caption = "".join(line for line in table.read_text().splitlines(True) if not line.startswith(" " * 30))
    table.write_text(without_caption)
    with pytest.raises(InvalidInputError, match=r"line 12, column 1: \[ is not closed before \u0666$"):
        read_route_file(table)


def test_table_of_paper_is_equal_in_both_syntaxes(shared_data: Path) -> None:
    old, new = (read_route_file(shared_data / "policies" / name) for name in ("router_table.ads", "router.conf"))
    assert [route.name for route in old.routes] == ["Site 1", "Site 2", "Site 3"]
    assert [route.name for route in new.routes] == ["Site1", "Site2", "Site3"]
    assert not old.left_out + new.left_out
    for one, other in zip(old.routes, new.routes, strict=True):
        assert (one.grid_resource, one.limits, one.changes) == (other.grid_resource, other.limits, other.changes)
    for table in (old, new):
        decisions = route_decisions(table, JobScopes.of({"WantJobRouter": True}), {})
        chosen = [chosen_route(decisions, round_robin=table.round_robin, turn=turn) for turn in range(3)]
        assert chosen == list(table.routes)
        assert chosen_route(route_decisions(table, JobScopes.of({}), {}), round_robin=True, turn=0) is None


@pytest.mark.parametrize(("new_line", "old_line"), [(715, 726), (747, 758), (777, 788), (808, 819), (916, 927)])
def test_documented_route_gives_same_ad_in_both_syntaxes(shared_data: Path, new_line: int, old_line: int) -> None:
    job: dict[str, AdValue] = {"Environment": "A=1", "Owner": "ann"}
    ads = []
    for line in (new_line, old_line):
        table = constrained(shared_data / "data" / "job_router" / f"htcondor-ce__writing-job-routes.md_L{line}.conf")
        (route,) = table.routes
        ads.append(routed_ad(job, route, table))
    assert ads[0] == ads[1] != job


@pytest.fixture
def ce_table(shared_data: Path, tmp_path: Path) -> RouteTable:
    """Return the route table of a computing element: its transforms and one route."""
    text = (shared_data / "data" / "job_router" / "htcondor-ce__01-ce-router-defaults.conf").read_text()
    routes = (shared_data / "data" / "job_router" / "htcondor-ce__non-htcondor-routes.md_L15.conf").read_text()
    path = tmp_path / "ce.conf"
    path.write_text(re.sub("^LOCAL_CONFIG_FILE.*$", "", text, flags=re.MULTILINE) + routes)
    return read_route_file(path)


def test_reads_all_transforms_of_computing_element(ce_table: RouteTable) -> None:
    assert ce_table.constraint == "target.JobUniverse =?= 5 || target.JobUniverse =?= 1"
    assert [transform.name for transform in ce_table.before] == ["Base", "Cleanup", "OrigRequests"]
    assert len(ce_table.after) == 7
    assert ce_table.after[1].requirements == "RequestGpus isnt undefined"
    assert "EVALSET BatchRuntime 60*4320" in ce_table.after[4].changes
    (route,) = ce_table.routes
    assert (route.limits.max_jobs, route.limits.max_idle_jobs) == (10_000, 2000)
    assert route.changes == ("default_queue = osg_queue",)


def test_transforms_of_computing_element_work_as_documented(ce_table: RouteTable) -> None:
    (route,) = ce_table.routes
    default = routed_ad({"JobUniverse": 5}, route, ce_table)
    assert default["RoutedJob"] is True
    assert (default["RequestCpus"], default["RequestMemory"], default["BatchRuntime"]) == (1, 2000, 4320 * 60)
    assert default["remote_queue"] == "osg_queue"
    requests: dict[str, AdValue] = {
        "xcount": 4,
        "RequestCpus": 2,
        "maxMemory": 3000,
        "maxWallTime": 90,
        "queue": "analy",
        "AuthTokenSubject": "s",
        "WantWholeNode": True,
        "TotalSubmitProcs": 1,
    }
    copy = routed_ad(requests, route, ce_table)
    assert (copy["OriginalCpus"], copy["remote_NodeNumber"], copy["OriginalMemory"]) == (4, 4, 3000)
    assert (copy["BatchRuntime"], copy["remote_queue"], copy["orig_AuthTokenSubject"]) == (5400, "analy", "s")
    assert copy["RequestCpus"] == Expression("TARGET.TotalCpus ?: JobCpus")
    assert copy["JobIsRunning"] == Expression("(JobStatus =!= 1) && (JobStatus =!= 5) && GlideinCpusIsGood")
    assert not {"AuthTokenSubject", "TotalSubmitProcs"} & copy.keys()
