"""Payloads that are shell scripts, and what can be seen of them while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.proc import all_processes, carries, read_process
from support.pilot_bench import a_job
from support.real_workshop import SITE


def shell(script: str, job_id: int = 1, **more: Any) -> GrantedJob:
    quoted = "'" + script.replace("'", "'\"'\"'") + "'"
    return a_job(job_id, **{"executable": "/bin/sh", "arguments": f"-c {quoted}", **more})


def of_payload(key: AttemptKey) -> set[int]:
    """Return every living process that carries the marker of an attempt."""
    return {
        process.pid
        for process in all_processes().values()
        if process.state not in "ZX" and carries(process.pid, "PILOTAGE_ATTEMPT", f"{SITE.marker}/{key}")
    }


def states_of(key: AttemptKey) -> set[str]:
    """Return the states of its processes, as the kernel's letters."""
    found = (read_process(pid) for pid in of_payload(key))
    return {process.state for process in found if process is not None}


def wrote(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text().endswith("\n")
