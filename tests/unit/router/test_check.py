"""`pilotage-agents routes check`: a table and a job in; routes, reasons and an exit code out."""

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


def _told(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> list[str]:
    assert run(["routes", "check", *map(str, arguments)]) == code
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert run(["routes", "check", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_routes_are_listed_with_what_they_take_and_change(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    lines = _told(capsys, 0, table)
    start = lines.index("Site 2 -> gt2 site2.edu")
    assert lines[start + 1 : start + 4] == [
        '    takes jobs if other.WantJobRouter && TARGET.Owner == "bob"',
        "    at most 5 copies, at most 50 of them idle; throttled above 0.03 failures/s",
        '    SET GlobusRSL "(jobType=single)"',
    ]
    assert lines[-1] == "Of several routes that take a job each in turn gets the next job."


def test_targets_are_shown_and_routes_without_one_are_named(
    capsys: pytest.CaptureFixture[str], table: Path, targets: Path
) -> None:
    lines = _told(capsys, 1, table, "--targets", targets)
    assert "Site 1 -> queue SITE1/ce/long" in lines
    assert "Site 3 -> server pilotage.site3.edu:4711" in lines
    assert 'Site 2: left out: no target is configured for the route or for its GridResource "gt2 site2.edu"' in lines


def test_each_route_says_whether_it_takes_a_job_and_why_not(
    capsys: pytest.CaptureFixture[str], table: Path, job: Path
) -> None:
    assert _told(capsys, 0, table, "--job", job, "--on-route", "Site 3=7,2,19") == [
        "Site 1 -> gt2 site1.edu",
        "    takes the job",
        "Site 2 -> gt2 site2.edu",
        '    requirements: TARGET.Owner == "bob" is false (TARGET.Owner = "ann")',
        "Site 3 -> condor submit.site3.edu",
        "    throttled: 19 failed in less than 600 s, where 18 may",
        "The job takes Site 1.",
    ]
    assert _told(capsys, 0, table, "--job", job)[-1] == "The job takes Site 1, in turn with Site 3."


def test_how_the_copy_differs_from_the_job_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path
) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = Clean\nJOB_ROUTER_TRANSFORM_Clean = DELETE WantJobRouter\n"
        "JOB_ROUTER_ROUTE_NAMES = A\nJOB_ROUTER_ROUTE_A @=end\n  REQUIREMENTS WantJobRouter\n"
        '  EVALSET Experiment strcat("atlas.", Owner)\n  SET requestcpus 8\n  SET Owner "ann"\n@end\n'
    )
    assert _told(capsys, 0, table, "--job", job)[2:] == [
        "The job takes A.",
        "    requestcpus = 8",
        '    Experiment = "atlas.ann"',
        "    without WantJobRouter",
    ]
    said = json.loads("".join(_told(capsys, 0, table, "--job", job, "--json")))
    assert said["copy"] == {"set": {"requestcpus": "8", "Experiment": '"atlas.ann"'}, "removed": ["WantJobRouter"]}


def test_a_change_that_comes_to_nothing_for_a_job_is_told_after_what_the_routes_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path
) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_ROUTE_NAMES = A\nJOB_ROUTER_ROUTE_A @=end\n  REQUIREMENTS true\n  SET B $(MY.Gone) + 1\n"
        "  SET C $(MY.Gone)\n@end\n"
    )
    why = "A, SET C $(MY.Gone): it has no value"
    assert _told(capsys, 1, table, "--job", job) == [
        "A -> no GridResource",
        "    takes the job",
        "The job takes A.",
        f"    its routed ad cannot be made: {why}",
    ]
    said = json.loads("".join(_told(capsys, 1, table, "--job", job, "--json")))
    assert (said["taken"], said["copy"], said["copy_fault"]) == ("A", None, why)


def test_a_job_that_no_route_takes_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], table: Path, job: Path
) -> None:
    full = ("--on-route", "Site 1=100", "--on-route", "Site 3=99,50")
    lines = _told(capsys, 1, table, "--job", job, *full)
    assert "    full: 100 of 100 copies on the route" in lines
    assert "    idle limit: 50 of 50 copies do not run" in lines
    assert lines[-1] == "The job takes no route."


def test_what_a_job_file_does_not_say_is_as_for_a_job_just_queued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, job: Path
) -> None:
    table = tmp_path / "table.ads"
    table.write_text('[name = "a"; Requirements = TARGET.JobUniverse == 5 && time() - TARGET.QDate < 60]')
    assert _told(capsys, 0, table, "--job", job)[-1] == "The job takes a."


def test_all_of_it_is_one_object_for_programs(
    capsys: pytest.CaptureFixture[str], table: Path, targets: Path, job: Path
) -> None:
    said: dict[str, Any] = json.loads("".join(_told(capsys, 0, table, "--targets", targets, "--job", job, "--json")))
    assert [(route["name"], route["target"], route["obstacles"]) for route in said["routes"]] == [
        ("Site 1", "queue SITE1/ce/long", []),
        ("Site 3", "server pilotage.site3.edu:4711", []),
    ]
    assert [left_out["name"] for left_out in said["left_out"]] == ["Site 2"]
    assert (said["taken"], said["round_robin"], said["constraint"], said["max_jobs"]) == ("Site 1", True, None, None)
    without = json.loads("".join(_told(capsys, 0, table, "--json")))
    assert not {"taken", "copy"} & without.keys()
    assert "obstacles" not in without["routes"][0]


def test_what_holds_for_all_routes_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "routes.conf"
    table.write_text(
        "JOB_ROUTER_ROUND_ROBIN_SELECTION = False\nJOB_ROUTER_MAX_JOBS = 10\nJOB_ROUTER_SOURCE_JOB_CONSTRAINT = Wants\n"
        "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES = Clean\nJOB_ROUTER_ROUTE_NAMES = A\n"
        'JOB_ROUTER_ROUTE_A @=end\n  MaxIdleJobs = -1\n  JobFailureTest = ExitCode != 0\n  SendIDTokens = "x"\n@end\n'
        "JOB_ROUTER_TRANSFORM_Clean @=end\n  REQUIREMENTS Wants\n  DELETE Wants\n@end\n"
    )
    assert _told(capsys, 0, table) == [
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
def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str], table: Path, option: str, why: str) -> None:
    before = ("--on-route", "SITE 2=1")
    assert _refused(capsys, table, *before, "--on-route", option) == [f"pilotage-agents: --on-route {option}: {why}"]


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
def test_wrong_targets_are_refused_with_their_place(
    capsys: pytest.CaptureFixture[str], table: Path, targets: Path, text: str, why: str
) -> None:
    targets.write_text(text)
    assert _refused(capsys, table, "--targets", targets) == [f"pilotage-agents: {targets}{why}"]


def test_files_that_are_not_there_are_named(capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for arguments in ((gone,), (table, "--targets", gone), (table, "--job", gone)):
        assert _refused(capsys, *arguments) == [f"pilotage-agents: {gone}: cannot be read: No such file or directory"]


def test_only_this_command_needs_htcondors_library(tmp_path: Path, table: Path) -> None:
    (tmp_path / "htcondor2.py").write_text("raise ImportError('not installed')\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    program = "import sys; from pilotage_agents.main import run; sys.exit(run(sys.argv[1:]))"

    def said(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert said("--help") == (0, "")
    code, words = said("routes", "check", str(table))
    assert code == 1
    assert "install the Python package htcondor" in words
    assert words.count("\n") == 1
