"""DAG files on the command line: submission, what a failed node leaves behind, rescue, and faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.v1 import jobs_pb2
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from support.dag_texts import write_dag
from support.wire_grid import WireGrid, WirePilot

DIAMOND = """
JOB A a.sub
JOB B a.sub
JOB C a.sub
JOB D a.sub
FINAL F a.sub
PARENT A CHILD B C
PARENT B C CHILD D
"""


class Folder:
    """A user's command line, in a folder with the diamond."""

    def __init__(self, grid: WireGrid) -> None:
        self._where = (grid.server.address, grid.server.token(owner="alice", vo=grid.vo))
        write_dag(Path(), DIAMOND)

    def run(self, *command: object) -> Result:
        environment = dict(zip(("PILOTAGE_SERVER", "PILOTAGE_TOKEN"), self._where, strict=True))
        return CliRunner().invoke(main, list(map(str, command)), env=environment)

    def submit(self, *options: object) -> str:
        """Submit the DAG; returns its workflow."""
        done = self.run("submit", "flow.dag", *options, "--json")
        assert done.exit_code == 0, done.output
        return f"w{json.loads(done.stdout)['workflow']}"

    def states(self, workflow: str) -> dict[str, str]:
        """Return the states of the jobs of a workflow by the names of their nodes."""
        with Client(*self._where) as client:
            return {job.name: job.state for job in client.jobs(client.find_jobs([workflow]).ids)}


@pytest.fixture
def folder(grid: WireGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(grid)


def run_nodes(grid: WireGrid, pilot: WirePilot, codes: Sequence[int]) -> None:
    """Run as many jobs, one after the other, which exit with these codes."""
    for code in codes:
        (match,) = pilot.request_jobs(wait_s=20).matches
        result = pilot.report(match.job_id, match.attempt, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=code)
        assert result.accepted, result.refusal


def test_rescue_runs_only_what_has_not_succeeded(grid: WireGrid, folder: Folder) -> None:
    pilot = grid.start_pilot()
    first = folder.submit()
    assert folder.states(first) == {"A": "WAITING", "B": "BLOCKED", "C": "BLOCKED", "D": "BLOCKED", "F": "BLOCKED"}
    run_nodes(grid, pilot, [0, 7, 0, 0])
    assert folder.states(first) == {"A": "DONE", "B": "FAILED", "C": "DONE", "D": "BLOCKED", "F": "DONE"}

    left = f"warning: 1 job of {first} is BLOCKED and cannot run: pilotage remove {first} removes it"
    written = folder.run("rescue", first, "-o", "flow.dag.rescue001")
    assert written.stdout == "3 nodes are done: flow.dag.rescue001\n"
    assert Path("flow.dag.rescue001").read_text() == f"# Rescue file of {first}\nDONE A\nDONE C\nDONE F\n"
    assert left in written.stderr
    assert f"reschedule {first} would run the nodes of a rescue a second time" in written.stderr
    assert folder.run("rescue", first).stdout == Path("flow.dag.rescue001").read_text()
    hint = folder.run("submit", "flow.dag", "--dry-run")
    assert hint.stdout.splitlines()[0] == "5 jobs would be submitted"
    assert "warning: flow.dag.rescue001 is not used; --rescue flow.dag.rescue001 leaves out" in hint.stderr

    second = folder.submit("--rescue", "flow.dag.rescue001")
    assert folder.states(second) == {"B": "WAITING", "D": "BLOCKED", "F": "BLOCKED"}
    run_nodes(grid, pilot, [0, 1, 0])
    assert left in folder.run("submit", "flow.dag", "--rescue", first, "--dry-run").stderr
    third = folder.submit("--rescue", first, "--rescue", second)
    run_nodes(grid, pilot, [0, 0])
    assert folder.states(third) == {"D": "DONE", "F": "DONE"}


def test_live_workflow_has_no_rescue(grid: WireGrid, folder: Folder) -> None:
    pilot = grid.start_pilot()
    workflow = folder.submit()
    run_nodes(grid, pilot, [0, 7])
    why = f"3 jobs of {workflow} have not ended (1 WAITING, 2 BLOCKED), and nodes would run twice"
    refused = folder.run("submit", "flow.dag", "--rescue", workflow)
    assert refused.exit_code != 0
    assert f"{why}: wait for {workflow}, or remove these jobs with pilotage remove {workflow}" in refused.stderr
    written = folder.run("rescue", workflow)
    assert written.stdout == f"# Rescue file of {workflow}\nDONE A\n"
    assert written.stderr.startswith("warning: ")
    assert why in written.stderr

    assert folder.run("remove", workflow).exit_code == 0
    assert folder.run("rescue", workflow).stderr == ""
    assert folder.states(folder.submit("--rescue", workflow))["B"] == "WAITING"


def test_reschedule_continues_the_same_workflow(grid: WireGrid, folder: Folder) -> None:
    pilot = grid.start_pilot()
    workflow = folder.submit()
    run_nodes(grid, pilot, [0, 7, 0, 0])
    assert folder.run("reschedule", workflow).exit_code == 0
    run_nodes(grid, pilot, [0, 0])
    assert set(folder.states(workflow).values()) == {"DONE"}


def test_faults_name_files_and_nodes(folder: Folder) -> None:
    Path("bad.dag").write_text("JOB A none.sub\nSCRIPT PRE A pre.sh\nPARENT A CHILD B\n")
    bad = folder.run("submit", "bad.dag")
    assert bad.exit_code == 2
    assert [line.partition(": ")[0] for line in bad.stderr.splitlines()] == ["bad.dag:3", "bad.dag:2"]
    Path("huge.dag").write_text('JOB A a.sub\nVARS A request_cpus="0"\n')
    assert "huge.dag: node A: request_cpus" in folder.run("submit", "huge.dag").stderr
    assert "a DAG is submitted alone" in folder.run("submit", "flow.dag", "a.sub").stderr
    assert "--rescue: belongs to a DAG file" in folder.run("submit", "a.sub", "--rescue", "w1").stderr
    assert "is not a workflow" in folder.run("rescue", "12").stderr
    assert "there is no workflow" in folder.run("submit", "flow.dag", "--rescue", f"w{10**12}").stderr


def test_ignored_statement_is_shown_by_why(folder: Folder) -> None:
    Path("flow.dag").write_text(f"{DIAMOND}SCRIPT POST B post.sh $RETURN\n")
    refused = folder.run("submit", "flow.dag")
    assert refused.exit_code == 2
    assert "flow.dag:9: SCRIPT POST B post.sh $RETURN: no scripts run beside the jobs" in refused.stderr
    workflow = folder.submit("--ignore-unsupported")
    shown = [each for each in folder.run("why", workflow).stdout.split("\n\n") if "Ignored" in each]
    assert len(shown) == 1
    assert "Ignored in its job file: SCRIPT POST B post.sh $RETURN" in shown[0]


def test_convert_shows_nodes_and_their_parents(folder: Folder) -> None:
    shown = [json.loads(line) for line in folder.run("convert", "flow.dag", "--json").stdout.splitlines()]
    assert [(job["node"], job.get("after_ok"), job.get("after_settled")) for job in shown] == [
        ("A", None, None),
        ("B", ["A"], None),
        ("C", ["A"], None),
        ("D", ["B", "C"], None),
        ("F", None, ["A", "B", "C", "D"]),
    ]


def test_dag_without_suffix_is_known_by_its_text(folder: Folder) -> None:
    Path("flow").write_text(DIAMOND)
    done = folder.run("submit", "flow", "--dry-run")
    assert done.stdout.splitlines()[0] == "5 jobs would be submitted", done.output
