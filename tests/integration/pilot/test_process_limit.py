"""A pilot whose user has reached the limit of processes."""

from __future__ import annotations

import json
import subprocess
import sys

_CHILD = """
import asyncio, json, os, resource
from pilotage.errors import WorldError
from pilotage_pilot.supervise.folders import run_with_threads

async def many_at_once():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:
        os.setuid(65533)  # root has no limit
    return await asyncio.gather(*(asyncio.to_thread(int, str(number)) for number in range(100)))

result = {"sum": sum(run_with_threads(4, many_at_once))}
try:
    run_with_threads(1, many_at_once)
except WorldError as error:
    result["threads"] = str(error)
print(json.dumps(result))
"""


def test_prestarted_threads_work_at_the_process_limit() -> None:
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {
        "sum": sum(range(100)),
        "threads": "the threads of the pilot cannot be started: can't start new thread",
    }
