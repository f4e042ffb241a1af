"""Parsl from PyPI with blocks that are jobs, on a whole installation."""

from __future__ import annotations

from pathlib import Path

from support.commands import up_command
from support.tools import InstallTool, run_python

APPS = """
import sys
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

def executor(label, worker_init):
    provider = PilotageProvider(worker_init=worker_init, cpus=1, memory="300 MB")
    return HighThroughputExecutor(
        label, provider, address="127.0.0.1", encrypted=False, max_workers_per_node=1, worker_logdir_root="."
    )

executors = [
    # The workers' socket is in TMPDIR, and its path has at most 107 characters.
    executor("good", f"export PATH={sys.prefix}/bin:$PATH TMPDIR=/tmp"),
    executor("bad", "echo no environment here >&2; exit 7"),
]
with parsl.load(Config(executors, run_dir="runs", usage_tracking=0)):
    calls = [square(number) for number in range(10)]
    print([call.result(60) for call in calls])
    print(repr(fail().exception(60)))
    print(repr(never().exception(60)))
"""


def test_apps_run_in_blocks_that_are_jobs(tmp_path: Path, install_tool: InstallTool) -> None:
    tool = install_tool("parsl")
    script = tmp_path / "apps.py"
    script.write_text(APPS)
    with up_command(tmp_path / "data", "--port", "0", "--cpus", "2", "--writable", str(tool)) as up:
        up.start()
        printed = run_python(tool, tmp_path, script, PILOTAGE_DATA=str(up.data))
        with up.client() as client:
            jobs = {job.name: job for job in client.list_jobs()}
    good, bad = jobs["parsl.good.block-0"], jobs["parsl.bad.block-0"]
    squares, error, failed_block = printed.splitlines()[:3]
    assert squares == str([(number * number, str(good.id), "1") for number in range(10)])
    assert error == "ValueError('seven')"
    assert (good.state, good.reason) == ("REMOVED", "Parsl has cancelled the block")
    assert (bad.state, bad.exit_code) == ("FAILED", 7)
    assert f"job {bad.id} is FAILED: exit code 7" in failed_block
    assert "no environment here" in failed_block
