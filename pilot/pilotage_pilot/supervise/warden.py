"""The pilot's last will: a small process that kills its payloads when the pilot itself was killed.

Without it a payload could go on after its pilot, and after its lease, while the same job runs elsewhere. The pilot
holds the other end of this process's standard input; when that ends, the pilot is gone, and so is every child of it
that had not become a payload yet. Runs alone, by its path, with nothing but the standard library: it has to be small
and to start at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
QUIET_ROUNDS = 3
ROUND_S = 0.01
MOST_ROUNDS = 1000
FREEZER_STATE = "freezer.state"
"""The file of a frozen group (version 1) whose processes no signal reaches until they are thawed."""


def environment_of(pid: int) -> bytes | None:
    """Return a process's environment as the kernel has it; None = it is gone, or not ours to see."""
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None


def is_in_exec(pid: int) -> bool:
    """Whether a process is just becoming another program, so that its environment cannot be read for a moment.

    Then the kernel shows neither arguments nor environment of it; unlike a zombie it has a program.
    """
    folder = PROC / str(pid)
    try:
        return not (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes() and bool(
            os.readlink(folder / "exe")
        )
    except OSError:
        return False


def payload_pids(variable: str, value_start: str) -> set[int]:
    """Return the processes whose environment has `variable` with a value that starts so."""
    start = f"{variable}={value_start}".encode()
    return {pid for pid in _others() if _has_entry(environment_of(pid) or b"", start)}


def _has_entry(environment: bytes, start: bytes) -> bool:
    return environment.startswith(start) or b"\0" + start in environment


def _others() -> Iterable[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit() and int(name) != os.getpid())


def kill_payloads(variable: str, value_start: str, groups: Iterable[Path] = ()) -> None:
    """Kill every such process and all that is in `groups`, until several looks in a row have found none."""
    folders = tuple(groups)
    quiet = 0
    for _ in range(MOST_ROUNDS):
        pids = payload_pids(variable, value_start) | _members(folders)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _thaw(folders)
        # One that is in the midst of an exec may be a payload's: nothing is over before it shows what it is.
        quiet = 0 if pids or any(is_in_exec(pid) for pid in _others()) else quiet + 1
        if quiet == QUIET_ROUNDS:
            return
        time.sleep(ROUND_S)


def _members(groups: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        for members in group.glob("*/cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in members.read_text().split())
    return found


def _thaw(groups: Iterable[Path]) -> None:
    for group in groups:
        for state in group.glob(f"*/{FREEZER_STATE}"):
            with contextlib.suppress(OSError):
                state.write_text("THAWED")


def main() -> None:
    """Wait for the end of standard input, then kill.

    Arguments: the marker's name, the start of its value, then the control groups whose children are payloads.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    variable, value_start, *groups = sys.argv[1:]
    folders = [Path(group) for group in groups]
    kill_payloads(variable, value_start, folders)
    for folder in folders:
        for path in [*folder.glob("*/"), folder]:
            with contextlib.suppress(OSError):
                path.rmdir()


if __name__ == "__main__":
    main()
