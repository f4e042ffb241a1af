"""Parsl from PyPI with blocks that are jobs, on a whole installation."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import up_command
from support.tools import InstallTool, run_python

APPS = """
import json, sys, time
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from pilotage_client.integrations.parsl import PilotageProvider

@parsl.python_app(executors=["good"])
def square(number):
    import os
    return number * number, os.environ["PILOTAGE_JOB_ID"], os.environ["PARSL_CORES"]

@parsl.python_app(executors=["good"])
def fail():
    raise ValueError("seven")

@parsl.python_app(executors=["bad"])
def never():
    pass

def config(label, worker_init, max_blocks):
    provider = PilotageProvider(worker_init=worker_init, max_blocks=max_blocks, cpus=1, memory="300 MB")
    executor = HighThroughputExecutor(
        label, provider, address="127.0.0.1", encrypted=False, max_workers_per_node=1, worker_logdir_root="."
    )
    return Config([executor], strategy="htex_auto_scale", strategy_period=0.5, max_idletime=0.5, usage_tracking=0)

def until_scaled_in(executor):
    while not all(block.terminal for block in executor.status_facade.values()):
        time.sleep(0.1)

found = {}
# The workers' socket is in TMPDIR, and its path has at most 107 characters.
good = config("good", f"export PATH={sys.prefix}/bin:$PATH TMPDIR=/tmp", 2)
with parsl.load(good):
    calls = [square(number) for number in range(200)]
    found["results"] = [call.result(120) for call in calls]
    found["error"] = repr(fail().exception(120))
    until_scaled_in(good.executors[0])
    found["after"] = square(3).result(120)
with parsl.load(config("bad", "echo no environment here >&2; exit 7", 1)):
    found["lost"] = str(never().exception(120))
print(json.dumps(found))
"""


def test_apps_run_in_blocks_that_are_jobs(tmp_path: Path, install_tool: InstallTool) -> None:
    tool = install_tool("parsl")
    script = tmp_path / "apps.py"
    script.write_text(APPS)
    with up_command(tmp_path / "data", "--port", "0", "--cpus", "2", "--writable", str(tool)) as up:
        up.start()
        found = json.loads(run_python(tool, tmp_path, script, PILOTAGE_DATA=str(up.data)).splitlines()[-1])
        with up.client() as client:
            jobs = list(client.list_jobs())
    good = {str(job.id): job for job in jobs if job.name.startswith("parsl.good.")}
    bad = next(job for job in jobs if job.name == "parsl.bad.block-0")
    assert [square for square, _, _ in found["results"]] == [number**2 for number in range(200)]
    first_blocks = {block for _, block, _ in found["results"]}
    assert {cores for _, _, cores in found["results"]} == {"1"}
    assert found["error"] == "ValueError('seven')"
    # All blocks were removed when no app was left; another one runs the next app.
    assert found["after"][0] == 9
    assert found["after"][1] in good.keys() - first_blocks
    assert {(job.state, job.reason) for job in good.values()} == {("REMOVED", "Parsl has cancelled the block")}
    assert (bad.state, bad.exit_code) == ("FAILED", 7)
    assert f"job {bad.id} is FAILED: exit code 7" in found["lost"]
    assert "no environment here" in found["lost"]
