"""`pilotage-agents routes check`: the routes of a table, the decision for a job, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotage_agents.main import run

TABLE = """
[ name = "Site 1"; GridResource = "gt2 site1.edu"; Requirements = other.WantJobRouter; MaxIdleJobs = 10; ]
[ name = "Site 2"; GridResource = "gt2 site2.edu"; Requirements = other.WantJobRouter && TARGET.Owner == "bob";
  MaxJobs = 5; set_GlobusRSL = "(jobType=single)"; ]
[ name = "Site 3"; GridResource = "condor submit.site3.edu"; Requirements = other.WantJobRouter; ]
"""
TARGETS = """
[routes]
"site 3" = { server = "pilotage.site3.edu:4711" }
[grid_resources]
"gt2 site1.edu" = { queue = "SITE1/ce/long" }
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.ads"
    path.write_text(TABLE)
    return path


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "targets.toml"
    path.write_text(TARGETS)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.ad"
    path.write_text('WantJobRouter = True\nOwner = "ann"\n')
    return path


def _output(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> list[str]:
    assert run(["routes", "check", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def _errors(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert run(["routes", "check", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_lists_routes_with_requirements_and_changes(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    lines = _output(capsys, 0, table)
    start = lines.index("Site 2 -> gt2 site2.edu")
    assert lines[start + 1 : start + 4] == [
        '    takes jobs if other.WantJobRouter && TARGET.Owner == "bob"',
        "    at most 5 copies, at most 50 of them idle; throttled above 0.03 failures/s",
        '    SET GlobusRSL "(jobType=single)"',
    ]
    assert lines[-1] == "Of several routes that take a job each in turn gets the next job."


def test_shows_targets_and_routes_left_out(capsys: pytest.CaptureFixture[str], table: Path, targets: Path) -> None:
    lines = _output(capsys, 1, table, "--targets", targets)
    assert "Site 1 -> queue SITE1/ce/long" in lines
    assert "Site 3 -> server pilotage.site3.edu:4711" in lines
    assert 'Site 2: left out: no target is configured for the route or for its GridResource "gt2 site2.edu"' in lines


def test_shows_decision_of_each_route_for_a_job(capsys: pytest.CaptureFixture[str], table: Path, job: Path) -> None:
    assert _output(capsys, 0, table, "--job", job, "--on-route", "Site 3=7,2,19") == [
        "Site 1 -> gt2 site1.edu",
        "    takes the job",
        "Site 2 -> gt2 site2.edu",
        '    requirements: TARGET.Owner == "bob" is false (TARGET.Owner = "ann")',
        "Site 3 -> condor submit.site3.edu",
        "    throttled: 19 failed in less than 600 s, where 18 may",
        "The job takes Site 1.",
    ]
    assert _output(capsys, 0, table, "--job", job)[-1] == "The job takes Site 1, in turn with Site 3."


def test_shows_changes_of_routed_ad(capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = Clean\nJOB_ROUTER_TRANSFORM_Clean = DELETE WantJobRouter\n"
        "JOB_ROUTER_ROUTE_NAMES = A\nJOB_ROUTER_ROUTE_A @=end\n  REQUIREMENTS WantJobRouter\n"
        '  EVALSET Experiment strcat("atlas.", Owner)\n  SET requestcpus 8\n  SET Owner "ann"\n@end\n'
    )
    assert _output(capsys, 0, table, "--job", job)[2:] == [
        "The job takes A.",
        "    requestcpus = 8",
        '    Experiment = "atlas.ann"',
        "    without WantJobRouter",
    ]
    report = json.loads("".join(_output(capsys, 0, table, "--job", job, "--json")))
    assert report["copy"] == {"set": {"requestcpus": "8", "Experiment": '"atlas.ann"'}, "removed": ["WantJobRouter"]}


def test_shows_error_of_routed_ad_after_routes(capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_ROUTE_NAMES = A\nJOB_ROUTER_ROUTE_A @=end\n  REQUIREMENTS true\n  SET B $(MY.Gone) + 1\n"
        "  SET C $(MY.Gone)\n@end\n"
    )
    why = "A, SET C $(MY.Gone): it has no value"
    assert _output(capsys, 1, table, "--job", job) == [
        "A -> no GridResource",
        "    takes the job",
        "The job takes A.",
        f"    its routed ad cannot be made: {why}",
    ]
    report = json.loads("".join(_output(capsys, 1, table, "--job", job, "--json")))
    assert (report["taken"], report["copy"], report["copy_fault"]) == ("A", None, why)


def test_exits_with_1_if_no_route_takes_the_job(capsys: pytest.CaptureFixture[str], table: Path, job: Path) -> None:
    full = ("--on-route", "Site 1=100", "--on-route", "Site 3=99,50")
    lines = _output(capsys, 1, table, "--job", job, *full)
    assert "    full: 100 of 100 copies on the route" in lines
    assert "    idle limit: 50 of 50 copies do not run" in lines
    assert lines[-1] == "The job takes no route."


def test_missing_job_attributes_default_to_new_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path
) -> None:
    table = tmp_path / "table.ads"
    table.write_text('[name = "a"; Requirements = TARGET.JobUniverse == 5 && time() - TARGET.QDate < 60]')
    assert _output(capsys, 0, table, "--job", job)[-1] == "The job takes a."


def test_json_output_is_one_object(capsys: pytest.CaptureFixture[str], table: Path, targets: Path, job: Path) -> None:
    lines = _output(capsys, 0, table, "--targets", targets, "--job", job, "--json")
    report: dict[str, Any] = json.loads("".join(lines))
    assert [(route["name"], route["target"], route["obstacles"]) for route in report["routes"]] == [
        ("Site 1", "queue SITE1/ce/long", []),
        ("Site 3", "server pilotage.site3.edu:4711", []),
    ]
    assert [left_out["name"] for left_out in report["left_out"]] == ["Site 2"]
    assert (report["taken"], report["round_robin"]) == ("Site 1", True)
    assert (report["constraint"], report["max_jobs"]) == (None, None)
    without = json.loads("".join(_output(capsys, 0, table, "--json")))
    assert not {"taken", "copy"} & without.keys()
    assert "obstacles" not in without["routes"][0]


def test_shows_settings_of_all_routes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_ROUND_ROBIN_SELECTION = False\nJOB_ROUTER_MAX_JOBS = 10\nJOB_ROUTER_SOURCE_JOB_CONSTRAINT = Wants\n"
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = Clean\nJOB_ROUTER_ROUTE_NAMES = A\n"
        'JOB_ROUTER_ROUTE_A @=end\n  MaxIdleJobs = -1\n  JobFailureTest = ExitCode != 0\n  SendIDTokens = "x"\n@end\n'
        "JOB_ROUTER_TRANSFORM_Clean @=end\n  REQUIREMENTS Wants\n  DELETE Wants\n@end\n"
    )
    assert _output(capsys, 0, table) == [
        "A -> no GridResource",
        "    takes any job",
        "    at most 100 copies, any number of them idle; throttled above 0.03 failures/s",
        "    a job has failed if ExitCode != 0",
        "    note: SendIDTokens is not honoured",
        "Every job must fulfil: Wants",
        "All routes together have at most 10 copies.",
        "Clean, before each route if Wants:",
        "    DELETE Wants",
        "Of several routes that take a job the first gets it.",
    ]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("Site 1", "is not of the form NAME=COPIES[,IDLE[,FAILED]]"),
        ("Site 1=many", "is not of the form NAME=COPIES[,IDLE[,FAILED]]"),
        ("Site 9=1", "the table has no route of this name in use"),
        ("site 2=1", "the same route was given before"),
    ],
)
def test_rejects_invalid_route_option(capsys: pytest.CaptureFixture[str], table: Path, option: str, why: str) -> None:
    before = ("--on-route", "SITE 2=1")
    assert _errors(capsys, table, *before, "--on-route", option) == [f"pilotage-agents: --on-route {option}: {why}"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[routes]\na = { queue = 'S/ce' }\n", """: routes."a": "S/ce" does not name a queue as SITE/CE/QUEUE"""),
        ("[routes]\na = { server = 'host' }\n", """: routes."a": "host" is not an address such as host:4711"""),
        ("[routes]\na = { server = ' ' }\n", """: routes."a": no address is given"""),
        (
            "[grid_resources]\n'batch  A' = { server = 'h:1' }\n'Batch a' = { server = 'h:2' }\n",
            """: grid_resources."Batch a": is the same as "batch  A", but for letter case or blanks""",
        ),
        ("[routes]\na = {}\n", ": routes.a: needs either a queue or a server"),
        ("[targets]\n", ": targets: is no setting"),
        ("a = ", ": Invalid value (at end of document)"),
    ],
)
def test_rejects_invalid_targets_with_position(
    capsys: pytest.CaptureFixture[str], table: Path, targets: Path, text: str, why: str
) -> None:
    targets.write_text(text)
    assert _errors(capsys, table, "--targets", targets) == [f"pilotage-agents: {targets}{why}"]


def test_error_names_missing_file(capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for arguments in ((missing,), (table, "--targets", missing), (table, "--job", missing)):
        assert _errors(capsys, *arguments) == [f"pilotage-agents: {missing}: cannot be read: No such file or directory"]


def test_only_this_command_needs_htcondor_library(tmp_path: Path, table: Path) -> None:
    (tmp_path / "htcondor2.py").write_text("raise ImportError('not installed')\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    program = "import sys; from pilotage_agents.main import run; sys.exit(run(sys.argv[1:]))"

    def run_program(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return process.returncode, process.stderr

    assert run_program("--help") == (0, "")
    code, error = run_program("routes", "check", str(table))
    assert code == 1
    assert "pip install htcondor" in error
    assert error.count("\n") == 1
