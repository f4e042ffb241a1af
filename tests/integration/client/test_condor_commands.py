"""HTCondor's commands with a running server: what tools read of their output, and their exit codes."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from pilotage.v1 import matcher_service_pb2, values_pb2
from pilotage_client.condor.main import main
from pilotage_client.condor.returns import read_remaps
from support.commands import environment_of, run
from support.wire_grid import WireGrid, WirePilot

SUBMIT_FILE = """
executable = /bin/sh
transfer_executable = false
arguments = "-c 'exit $(Process)'"
log = jobs.log
+Kind = "test"
queue 2
"""


class Done(NamedTuple):
    """How a command has ended."""

    returncode: int
    stdout: str
    stderr: str


class CondorCommands:
    """Runs the commands in this process, for one user in one folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch

    def run(self, command: str, *arguments: object, text: str = "") -> Done:
        out, err = io.StringIO(), io.StringIO()
        self._patch.setattr("sys.stdin", io.StringIO(text))
        with redirect_stdout(out), redirect_stderr(err):
            code = main([command, *map(str, arguments)])
        return Done(code, out.getvalue(), err.getvalue())

    def __call__(self, command: str, *arguments: object, text: str = "") -> str:
        done = self.run(command, *arguments, text=text)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, text: str = SUBMIT_FILE) -> int:
        """Submit a file, and return its cluster."""
        (cluster,) = re.findall(r"^\d+ job\(s\) submitted to cluster (\d+)\.$", self("condor_submit", text=text), re.M)
        return int(cluster)


@pytest.fixture
def condor(grid: WireGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CondorCommands:
    monkeypatch.chdir(tmp_path)
    settings = {"SERVER": grid.server.address, "TOKEN": grid.server.token(vo=grid.vo), "CONDOR_RETURN": "no"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PILOTAGE_{name}", value)
    return CondorCommands(tmp_path, monkeypatch)


@pytest.fixture
def returning(condor: CondorCommands, monkeypatch: pytest.MonkeyPatch) -> Iterator[CondorCommands]:
    """Yield the commands with the return of output, by a process that ends with the last job."""
    monkeypatch.delenv("PILOTAGE_CONDOR_RETURN")
    monkeypatch.setenv("XDG_STATE_HOME", str(condor.folder / "state"))
    yield condor
    condor.run("condor_rm", "-all")


@pytest.fixture
def pilot(grid: WireGrid) -> WirePilot:
    return grid.start_pilot()


def test_submission_prints_its_clusters(condor: CondorCommands) -> None:
    two = SUBMIT_FILE + "executable = /bin/true\nqueue 3\n"
    printed = condor("condor_submit", text=two)
    found = re.fullmatch(r"Submitting job\(s\)\.{5}\n2 job\(s\) .* cluster (\d+)\.\n3 job\(s\) .* (\d+)\.\n", printed)
    assert found is not None, printed
    terse = condor("condor_submit", "-terse", "-append", 'MY.Kind = "other"', "-batch-name", "scan", text=SUBMIT_FILE)
    cluster = int(terse.partition(".")[0])
    assert terse == f"{cluster}.0 - {cluster}.1\n"
    assert condor("condor_q", cluster, "-af:j", "Kind", "JobBatchName", "Iwd") == "".join(
        f"{cluster}.{process} other scan {condor.folder}\n" for process in (0, 1)
    )
    verbose = condor("condor_submit", "executable=/bin/true", "-verbose", "-queue", "1")
    assert re.search(r"^\*\* Proc \d+\.0:\n(?:.*\n)*Cmd = ", verbose, re.M)
    dry = condor("condor_submit", "-dry-run", "-", text=SUBMIT_FILE)
    assert dry.count('Kind = "test"\n') == 2


def test_log_exists_after_submission(condor: CondorCommands) -> None:
    cluster = condor.submit()
    log = (condor.folder / "jobs.log").read_text()
    assert [line[:17] for line in log.splitlines() if line.startswith("000")] == [
        f"000 ({cluster:03d}.{process:03d}.000)"[:17] for process in (0, 1)
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-af", "ProcId", "Kind", "Nothing"], "0 test undefined\n1 test undefined\n"),
        (["-af:jr", "JobStatus", "Kind"], '{0}.0 1 "test"\n{0}.1 1 "test"\n'),
        (["-af:lng", "ClusterId", "ProcId"], "\nClusterId = {0}\nProcId = 0\n\nClusterId = {0}\nProcId = 1\n"),
        (["-autoformat:,V", "Kind", "ProcId"], '"test", 0\n"test", 1\n'),
        (["-af:th", "ProcId", "1+ProcId"], "ProcId\t1+ProcId\n0     \t1\n1     \t2\n"),
        (["-format", "%d.", "ClusterId", "-format", r"%03d\n", "ProcId"], "{0}.000\n{0}.001\n"),
        (["-format", "%s ", "Kind", "-format", "<%s>", "Nothing"], "test test "),
        (["-const", "ProcId == 1", "-af", "ProcId"], "1\n"),
        (["-limit", "1", "-af", "ProcId"], "0\n"),
        (["-hold", "-af", "ProcId"], ""),
        (["-attributes", "ProcId,Kind"], 'Kind = "test"\nProcId = 0\n\nKind = "test"\nProcId = 1\n\n'),
    ],
)
def test_queue_has_htcondors_formats(condor: CondorCommands, options: list[str], expected: str) -> None:
    cluster = condor.submit()
    assert condor("condor_q", cluster, *options) == expected.format(cluster)


def test_queue_lists_are_json_and_xml(condor: CondorCommands) -> None:
    assert json.loads(condor("condor_q", "-json")) == []
    cluster = condor.submit()
    ads = json.loads(condor("condor_q", f"{cluster}.1", "-json"))
    assert [(ad["ClusterId"], ad["ProcId"], ad["JobStatus"], ad["CompletionDate"]) for ad in ads] == [
        (cluster, 1, 1, 0)
    ]
    root = ElementTree.fromstring(condor("condor_q", f"{cluster}.1", "-xml"))
    assert root.findtext("c/a[@n='Kind']/s") == "test"
    lines = condor("condor_q", cluster, "-jsonl", "-attributes", "ProcId").splitlines()
    assert [json.loads(line) for line in lines] == [{"ProcId": 0}, {"ProcId": 1}]


def test_queue_tables_count_jobs(condor: CondorCommands) -> None:
    cluster = condor.submit()
    condor("condor_hold", f"{cluster}.0", "-reason", "to look at it")
    batch = re.search(rf"^\S+ +ID: {cluster} .*? +_ +_ +1 +1 +2 {cluster}\.0-1$", condor("condor_q"), re.M)
    assert batch is not None
    table = condor("condor_q", "-nobatch")
    assert re.search(rf"^ *{cluster}\.1 +\S+ +\d+/\d+ +\d+:\d+ +0\+00:00:00 I  0   0.0  sh -c 'exit 1'$", table, re.M)
    totals = "Total for query: 2 jobs; 0 completed, 0 removed, 1 idle, 0 running, 1 held, 0 suspended"
    assert totals in table
    assert totals in condor("condor_q", "-totals")
    assert "to look at it" in condor("condor_q", "-hold", cluster)


def test_changes_print_what_they_did(condor: CondorCommands) -> None:
    cluster = condor.submit()
    assert condor("condor_hold", f"{cluster}.0") == f"Job {cluster}.0 held\n"
    again = condor.run("condor_hold", f"{cluster}.0")
    assert (again.returncode, again.stderr) == (1, f"Job {cluster}.0 already held\n")
    assert condor("condor_release", cluster) == f"All jobs in cluster {cluster} have been released\n"
    assert condor.run("condor_release", f"{cluster}.0").stderr == f"Job {cluster}.0 not held to be released\n"
    some = f"ClusterId == {cluster} && ProcId == 0"
    removed = condor("condor_rm", "-constraint", some)
    assert removed == f"All jobs matching constraint ({some}) have been marked for removal\n"
    assert condor("condor_rm", cluster) == f"All jobs in cluster {cluster} have been marked for removal\n"
    gone = condor.run("condor_rm", cluster)
    assert (gone.returncode, gone.stderr) == (1, f"Couldn't find/remove all jobs in cluster {cluster}\n")
    assert condor("condor_rm", "-forcex", f"{cluster}.1").startswith(f"Job {cluster}.1 removed locally")
    assert condor("condor_history", cluster, "-af", "ProcId", "JobStatus") == "1 3\n0 3\n"


def test_ended_jobs_move_to_the_history(returning: CondorCommands, pilot: WirePilot) -> None:
    condor = returning
    cluster = condor.submit()
    pilot.request_jobs()
    pilot.finish(cluster)
    done = condor("condor_wait", "-wait", 60, "-num", 1, "jobs.log")
    assert done == "1 jobs done.\n"
    assert condor("condor_q", "-af", "ProcId") == "1\n"
    assert condor("condor_history", "-af:j", "JobStatus", "ExitCode", "ExitStatus") == f"{cluster}.0 4 0 0\n"
    assert condor("condor_history", cluster, "-limit", 0, "-af", "ProcId") == ""
    condor.submit()
    assert condor.run("condor_wait", "-wait", 0, "jobs.log", f"{cluster}.1").stdout == "Time expired.\n"
    assert condor("condor_wait", "jobs.log", f"{cluster}.0") == "All jobs done.\n"


def test_output_is_back_when_a_job_has_left_the_queue(returning: CondorCommands, pilot: WirePilot) -> None:
    condor = returning
    lines = [
        "executable = /bin/true",
        "transfer_executable = false",
        "output = logs/out",
        "transfer_output_files = a, b",
    ]
    lines += ['transfer_output_remaps = "a = there/first"', "leave_in_queue = true", "queue"]
    lines.insert(0, "log = no.log")  # which cannot be written, as it is none: the output comes back all the same
    (condor.folder / "jobs").mkdir()
    (condor.folder / "jobs" / "no.log").write_text("notes\n")
    cluster = condor.submit("\n".join(["initialdir = jobs", *lines]))
    assert [match.job_id for match in pilot.request_jobs().matches] == [cluster]
    pilot.finish(cluster, outputs={"out": b"hello\n", "a": b"1", "b": b"2", "stderr": b"nobody asked"})
    while condor("condor_q", "-af", "ProcId"):
        pass
    back = {str(path.relative_to(condor.folder / "jobs")): path.read_text() for path in _files(condor.folder / "jobs")}
    assert back == {"logs/out": "hello\n", "there/first": "1", "b": "2", "no.log": "notes\n"}
    assert condor("condor_q", cluster, "-af", "JobStatus") == "4\n"


def test_cluster_that_is_added_later_is_logged_once(returning: CondorCommands, pilot: WirePilot) -> None:
    condor = returning
    condor.submit("hold = true\n" + SUBMIT_FILE)  # keeps the returner alive
    later = condor.submit(SUBMIT_FILE.replace("jobs.log", "later.log"))
    pilot.request_jobs()
    pilot.finish(later)
    condor("condor_rm", f"{later}.1")
    condor("condor_wait", "later.log")
    numbers = re.findall(r"^(\d{3}) \(", (condor.folder / "later.log").read_text(), re.M)
    assert [numbers.count(number) for number in ("000", "005", "009")] == [2, 1, 1]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_slots_are_listed(condor: CondorCommands, pilot: WirePilot) -> None:
    amounts = values_pb2.Amounts(cpus=1, memory_mib=2000)
    slot = matcher_service_pb2.SlotState(
        name="slot1", state="Unclaimed", activity="Idle", amounts=amounts, free=amounts, ad="[Fast = true]"
    )
    node = f"node-{condor.folder.name}"
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name=node, amounts=amounts, slots=[slot]))
    assert condor("condor_status", node, "-af", "Name", "State", "Fast") == f"slot1@{node} Unclaimed true\n"
    (ad,) = json.loads(condor("condor_status", "-const", f'Machine == "{node}"', "-json", "-attributes", "Memory"))
    assert ad == {"Memory": 2000}
    table = condor("condor_status", node)
    assert re.search(rf"^slot1@{node} .* Unclaimed Idle ", table, re.M)
    assert re.search(r"^ +Total +1 +0 +0 +1 ", table, re.M)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["condor_q", "-better-analyze", "1"], "ERROR: -better-analyze: is not supported: `pilotage why ID`"),
        (["condor_q", "-nonsense"], "ERROR: -nonsense: is an option that is not known here"),
        (["condor_q", "-constraint", "("], "ERROR: -constraint (: "),
        (["condor_q", "1.x"], "ERROR: 1.x: is neither a cluster nor a job"),
        (["condor_q", "-limit"], "ERROR: -limit: needs 1 value"),
        (["condor_rm"], "ERROR: condor_rm: names no jobs"),
        (["condor_submit", "missing.sub"], "ERROR: missing.sub: "),
        (["condor_submit", "-interactive"], "ERROR: -interactive: is not supported: a job has no terminal"),
        (["condor_status", "-schedd"], "ERROR: -schedd: is not supported: "),
        (["condor_wait", "none.log"], "ERROR: user log none.log: no such file"),
    ],
)
def test_refusals_say_why(condor: CondorCommands, command: list[str], said: str) -> None:
    done = condor.run(*command)
    assert done.returncode == 1
    assert done.stderr.startswith(said)


def test_options_without_meaning_are_ignored_with_a_note(condor: CondorCommands) -> None:
    done = condor.run("condor_q", "-name", "schedd@x", "-pool", "cm", "-global", "-af", "ProcId")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("is ignored: there is one queue") == 2


@pytest.mark.parametrize(
    ("text", "remaps"),
    [
        ("a = b ; c=d/e", {"a": "b", "c": "d/e"}),
        (r"a\=b = x\;y", {"a=b": "x;y"}),
        ("a", {}),
        ("", {}),
    ],
)
def test_remaps_are_read_as_htcondors(text: str, remaps: dict[str, str]) -> None:
    assert read_remaps(text) == remaps


def test_scripts_run_the_commands(tmp_path: Path) -> None:
    assert run("condor-commands", tmp_path / "bin").exit_code == 0
    environment = environment_of(tmp_path) | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    done = subprocess.run(["condor_version"], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert re.match(r"\$CondorVersion: \d+\.\d+\.\d+ .*\$\n\$CondorPlatform: .*\$\n", done.stdout)


def test_scripts_replace_no_other_program(tmp_path: Path) -> None:
    (tmp_path / "condor_q").write_text("#!/bin/sh\n# HTCondor's\n")
    refused = run("condor-commands", tmp_path)
    assert refused.exit_code == 2
    assert "another program" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["condor_q"]
