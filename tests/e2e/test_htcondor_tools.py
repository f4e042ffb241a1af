"""Tools that were written for HTCondor run unchanged on the commands, with a live server and pilots.

They submit, ask for the state, read output and logs, remove, and see the end: law, which parses condor_q and
condor_history, and dask-jobqueue, whose workers are jobs that a scheduler adds and removes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.commands import UpCommand, run, up_command
from support.tools import InstallTool, run_python

LAW = r"""
import json, os, pathlib, time
import law
law.contrib.load("htcondor")
from law.contrib.htcondor.job import HTCondorJobFileFactory, HTCondorJobManager

def script(name, text):
    path = pathlib.Path(name)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return name

def until(states, ids):
    while True:
        found = manager.query(ids)
        if {each["status"] for each in found.values()} <= states:
            return [found[each] for each in ids]
        time.sleep(0.2)

manager = HTCondorJobManager()
factory = HTCondorJobFileFactory(dir=os.getcwd(), mkdtemp=False, cleanup=False, postfix_output_files=False)
work = script("work.sh", "echo ran $*\necho result > res.txt\nexit $1\n")
files = [
    factory.create(
        executable=work, arguments=[str(code)], postfix=f"_{code}", output_files={"res.txt": f"results/{code}.txt"},
        stdout=f"logs/out_{code}.txt", stderr=f"err_{code}.txt", log=f"log_{code}.txt",
    )[0]
    for code in (0, 3)
]
ended = until({"finished", "failed"}, [manager.submit(each) for each in files])
back = {str(path): path.read_text() for folder in ("logs", "results") for path in pathlib.Path(folder).iterdir()}
long = script("long.sh", "sleep 1000\n")
job = manager.submit(factory.create(executable=long, arguments=["x"], postfix="_l", log="long.txt")[0])
until({"running"}, [job])
manager.cancel(job)
(removed,) = until({"failed"}, [job])
print(json.dumps({"version": manager.htcondor_version, "ended": ended, "back": back, "removed": removed["error"]}))
"""

DASK = r"""
import json, subprocess, sys, time
from dask.distributed import Client
from dask_jobqueue import HTCondorCluster

def queue(*options):
    return subprocess.run(["condor_q", *options], check=True, capture_output=True, text=True).stdout

host = {"host": "127.0.0.1", "dashboard_address": None}
with HTCondorCluster(
    cores=1, memory="300MB", disk="100MB", python=sys.executable, log_directory="logs", scheduler_options=host
) as cluster, Client(cluster) as client:
    cluster.scale(jobs=1)
    total = client.submit(sum, [1, 2, 3]).result(timeout=60)
    table = queue("-nobatch")
    cluster.scale(0)
    while queue("-af", "ClusterId"):
        time.sleep(0.2)
print(json.dumps({"total": total, "table": table}))
"""


@pytest.fixture(scope="module")
def tools(install_tool: InstallTool) -> Path:
    return install_tool("htcondor")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Iterator[UpCommand]:
    data = tmp_path_factory.mktemp("up") / "data"
    with up_command(data, "--port", "0", "--writable", str(tools)) as command:
        yield command.start()


def run_tool(up: UpCommand, tools: Path, folder: Path, program: str) -> dict[str, Any]:
    """Run a program with the tools and the commands on PATH; returns the JSON object of its last line."""
    assert run("condor-commands", folder / "bin").exit_code == 0
    (folder / "work").mkdir()
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    printed = run_python(tools, folder / "work", "-c", program, PILOTAGE_DATA=str(up.data), PATH=path)
    last: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return last


def test_law_submits_queries_and_cancels(
    up: UpCommand,
    tools: Path,
    tmp_path: Path,
) -> None:
    found = run_tool(up, tools, tmp_path, LAW)
    assert found["version"][0] >= 25
    assert [(each["status"], each["code"]) for each in found["ended"]] == [("finished", 0), ("failed", 3)]
    assert found["back"] == {
        "logs/out_0.txt": "ran 0\n",
        "logs/out_3.txt": "ran 3\n",
        "results/0.txt": "result\n",
        "results/3.txt": "result\n",
    }
    assert found["removed"].startswith("removed by ")
    assert "Job was aborted" in (tmp_path / "work" / "long.txt").read_text()


def test_dask_workers_are_jobs(
    up: UpCommand,
    tools: Path,
    tmp_path: Path,
) -> None:
    found = run_tool(up, tools, tmp_path, DASK)
    assert found["total"] == 6
    assert " R  0 " in found["table"]
