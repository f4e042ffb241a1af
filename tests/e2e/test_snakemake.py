"""Snakemake from PyPI with the executor of Pilotage, on a whole installation."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from pilotage_client.api import Client
from support.commands import WAIT_TIMEOUT_S, UpCommand, up_command
from support.tools import InstallTool, tool_environment

SNAKEFILE = """
rule all:
    input: "out/sum.txt"

rule part:
    input: "in.txt"
    output: "out/part{n}.txt"
    log: "logs/part{n}.log"
    resources: mem_mb=200, disk_mb=100, runtime=5
    shell: "echo {wildcards.n} | cat {input} - > {output}; pwd > {log}"

rule sum:
    input: expand("out/part{n}.txt", n=range(2))
    output: "out/sum.txt"
    script: "scripts/sum.py"

rule broken:
    output: "broken.txt"
    resources: disk_mb=100
    shell: "echo it breaks here; exit 3"

rule misspelt:
    output: "misspelt.txt"
    resources: pilotage_memroy="1 GB"
    shell: "touch {output}"

rule many:
    output: "many.txt"
    resources: pilotage_count=2
    shell: "touch {output}"

rule slow:
    output: "out/slow.txt"
    resources: disk_mb=100
    shell: "touch out/started; sleep 3600; touch {output}"

rule nowhere:
    output: "nowhere.txt"
    resources: pilotage_require="SoftwareTag=on-no-queue"
    shell: "touch {output}"
"""

SUM = """
from pathlib import Path
numbers = [int(word) for file in snakemake.input for word in Path(file).read_text().split()]
Path(snakemake.output[0]).write_text(str(sum(numbers)))
"""

NOT_SHARED = ("--shared-fs-usage", "software-deployment")
"""The tools are installed on the nodes, and no file is shared."""


class Workflow:
    """A folder with a workflow."""

    def __init__(self, folder: Path, tools: Path, up: UpCommand) -> None:
        self.folder = folder
        for name in ("out", "logs", "scripts"):
            # Each job runs as a user of its own if the pilot is root.
            (folder / name).mkdir()
            (folder / name).chmod(0o777)
        (folder / "Snakefile").write_text(SNAKEFILE)
        (folder / "scripts" / "sum.py").write_text(SUM)
        (folder / "in.txt").write_text("7\n")
        folder.chmod(0o777)
        self._environment = tool_environment(tools, folder, PILOTAGE_DATA=str(up.data))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = ["snakemake", "--executor", "pilotage", "--jobs", "10", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            executable=f"{self._environment['PATH'].split(':')[0]}/snakemake",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0,
        )

    def run(self, *arguments: str, exits: int = 0) -> str:
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=2 * WAIT_TIMEOUT_S)
        assert process.returncode == exits, printed
        return printed


@pytest.fixture(scope="module")
def tools(install_tool: InstallTool) -> Path:
    return install_tool("snakemake")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Iterator[UpCommand]:
    data = tmp_path_factory.mktemp("up") / "data"
    with up_command(data, "--port", "0", "--cpus", "2", "--writable", str(tools)) as up:
        yield up.start()


@pytest.fixture
def client(up: UpCommand) -> Iterator[Client]:
    with up.client() as client:
        yield client


@pytest.fixture
def workflow(tools: Path, up: UpCommand) -> Workflow:
    # Beside the data folder: jobs may write there.
    return Workflow(Path(mkdtemp(dir=up.data.parent)), tools, up)


def test_workflow_runs_in_a_shared_folder(workflow: Workflow, client: Client) -> None:
    workflow.run()
    assert (workflow.folder / "out" / "sum.txt").read_text() == "15"
    assert (workflow.folder / "logs" / "part0.log").read_text().strip() == str(workflow.folder)
    jobs = list(client.list_jobs(newest_first=True))[:3]
    assert [job.name for job in jobs] == ["sum", "part", "part"]
    asked = client.description(jobs[-1].id)
    assert (asked.request_cpus, asked.request_memory_mib, asked.request_disk_mib) == (1, 191, 96)
    assert asked.wall_time is not None
    assert asked.wall_time.total_seconds() == 300


def test_files_travel_without_a_shared_folder(workflow: Workflow) -> None:
    workflow.folder.chmod(0o700)
    workflow.run(*NOT_SHARED)
    assert (workflow.folder / "out" / "sum.txt").read_text() == "15"
    assert (workflow.folder / "logs" / "part0.log").read_text().strip() != str(workflow.folder)


def test_failure_names_reason_log_and_command(workflow: Workflow) -> None:
    printed = workflow.run("broken.txt", *NOT_SHARED, exits=1)
    assert "is FAILED: exit code 1" in printed
    assert "See `pilotage why " in printed
    (log,) = (workflow.folder / ".snakemake" / "pilotage_logs" / "broken").iterdir()
    assert str(log.relative_to(workflow.folder)) in printed
    assert "it breaks here" in log.read_text()


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("misspelt", "memroy: is not a key of a job; did you mean memory?"),
        ("many", "pilotage_count: is set by the executor itself"),
    ],
)
def test_wrong_key_is_refused_with_the_rule(workflow: Workflow, rule: str, fault: str) -> None:
    printed = workflow.run(f"{rule}.txt", *NOT_SHARED, exits=1)
    assert f"Pilotage does not take jobs of {rule}: {fault}" in printed


def test_interrupt_removes_running_and_waiting_jobs(workflow: Workflow, client: Client, up: UpCommand) -> None:
    process = workflow.start("out/slow.txt", "nowhere.txt")
    up.until((workflow.folder / "out" / "started").exists)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert process.returncode == 1, printed
    assert "Pilotage: no queue satisfies the requirements" in printed
    jobs = list(client.list_jobs(newest_first=True))[:2]
    assert {job.name for job in jobs} == {"slow", "nowhere"}
    assert {(job.state, job.reason) for job in client.wait([job.id for job in jobs], WAIT_TIMEOUT_S)} == {
        ("REMOVED", "Snakemake was interrupted")
    }
